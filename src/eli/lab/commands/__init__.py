"""The commands of `eli`, one module each: its options, and what it does. Imported by `eli.lab.cli`."""
