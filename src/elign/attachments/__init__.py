"""Hooks on any head of any model."""
