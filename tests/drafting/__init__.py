"""Drafters against their targets: each fault that users of drafters report, judged by another way of computing."""
