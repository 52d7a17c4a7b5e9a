"""The paper's evaluation as plans of runs: what to train and read, what is done already, and tables beside the paper.

Built on `eli.lab.experiments` and `eli.lab.evaluation`; imported by the command `eli reproduce`.
"""
