"""Prompts of ranks: input(), the debugger and the keyboard.

A question of a rank is an event of the cell's inbox. `PromptBroker` decides in the loop of the cell, and a thread waits
for the person. A prompt can be withdrawn, as that thread polls a pipe beside the front end's stdin channel. `queue`
(pure) merges identical prompts, and `debugger_groups` (pure) tracks stopped ranks and the target of a command. Output
is split at a prompt, so earlier output is above it. `%mesh debug` runs `%debug` on the failed ranks, as a cell of its
own.
"""
