"""Training of one task: the loop, the learning rate, devices."""
