"""The paper's evaluation as plans of runs: what to train and read, what is done already, and tables beside the paper.

Built on `elign.lab.experiments` and `elign.lab.evaluation`; imported by the command `elign reproduce`.
"""
