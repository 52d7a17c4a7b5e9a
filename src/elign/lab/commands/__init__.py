"""The commands of `elign`, one module each: its options, and what it does."""
