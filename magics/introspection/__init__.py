"""Completion and inspection in mesh cells and on option lines.

`context` (pure) locates the cursor. Lines of `%%mesh` and `%mesh` are completed from their parsers (`options`), so a
new option or verb needs only the type of its argument. For a body, the first rank of its selector answers. A rank
that has not answered in 150 ms, or still owes the answer before, is completed from a `Snapshot` of its namespace
(`cached`), requested after each cell that made names. `local_names` finds names of the body itself, by jedi, here.
Inspection asks all selected ranks: the first sends IPython's text, the others what a comparison needs. While a cell
runs, the kernel answers on its own threads (`kernel.services`) and never sets a parent header; front ends that saw
`idle` get `busy` once more.
"""
