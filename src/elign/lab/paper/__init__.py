"""The paper: its printed numbers, its published configurations, and its tables as plans of runs."""
