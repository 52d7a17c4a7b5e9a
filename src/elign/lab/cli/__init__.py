"""The command `elign`: one module for each command, which imports what it needs when it runs."""
