"""Replay of recorded cases."""
