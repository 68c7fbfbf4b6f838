"""Vitals of ranks for monitoring systems, through their own libraries, which are there where somebody wants them."""
