"""Prompts of ranks: input(), the debugger and the keyboard."""
