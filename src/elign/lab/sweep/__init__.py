"""Many runs side by side, on one machine or on a cluster: `elign sweep`.

`plan.py` makes runs of what was typed, `worker.py` does one of them, `cluster.py` has Ray do them all, and `table.py`
shows how far they are.
"""
