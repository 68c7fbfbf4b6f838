"""The parser of the command `meshbook`: its verbs, their arguments, and an example for each of them."""

from __future__ import annotations

import argparse
import sys

from meshbook.runtime.error_page import section_name, sections

# What a shell completes for an argument; shtab reads it (`shtab.FILE`).
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
RUN_HELP = "the id of the run, a prefix of the id, or the name of one of its meshes"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the verb is in `verb`."""
    parser = argparse.ArgumentParser(
        prog="meshbook",
        description="Run notebooks and scripts on many processes, and manage runs, the kernel and this machine.",
        epilog="example: meshbook run train.ipynb --hosts slurm:4 --gpus 8 -p lr=1e-3",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    def add(verb: str, summary: str, example: str) -> argparse.ArgumentParser:
        shown, epilog = summary.replace("%", "%%"), f"example: meshbook {example}"
        return verbs.add_parser(verb, help=shown, description=summary, epilog=epilog, allow_abbrev=False)

    _add_lab(add("lab", "open JupyterLab, in which new notebooks have the meshbook kernel", "lab train.ipynb"))
    _add_run(
        add(
            "run",
            "run a notebook as a batch job (an executed copy, a page, an exit status), or a script on every rank as "
            "torchrun does",
            "run train.ipynb --hosts slurm:4 --gpus 8 -p lr=1e-3",
        )
    )
    _add_export(
        add("export", "write the %%mesh cells of a notebook as a script for torchrun", "export train.ipynb -o train.py")
    )
    add("runs", "list the detached runs (%mesh detach) on this host, with their state", "runs")
    _add_attached(
        add(
            "attach", "show the output of a detached run until its cells end, without taking it over", "attach 3f9c01aa"
        )
    )
    add("end", "end a detached run and all its processes", "end 3f9c01aa").add_argument(
        "run", metavar="RUN", help=RUN_HELP
    )
    _add_trace(
        add(
            "trace",
            "save what the ranks of a run did lately, of a running script or notebook or of a detached run, for "
            "ui.perfetto.dev",
            "trace 3f9c01aa -o trace.json.gz",
        )
    )
    add("debug", "serve breakpoint() of actors in scripts on this terminal, until Ctrl-C", "debug")
    _add_section(
        add(
            "explain",
            "explain an error class or a frequent message: what it means, its usual causes, and what to do",
            "explain grouperror",
        )
    )
    add("doctor", "check the installation and the machine, and suggest fixes", "doctor")
    add(
        "worker",
        "make this machine a host of clients that attach to it (meshbook.hosts.attach), until one shuts it down",
        "worker tcp://gpu1:22222",
    ).add_argument("address", metavar="ADDRESS", help="where to listen, such as tcp://gpu1:22222 or ipc://name")
    _add_place(add("install", "make the kernel visible to Jupyter", "install --user"))
    _add_place(add("uninstall", "remove the kernel from Jupyter", "uninstall --user"))
    add(
        "completion",
        "print the code that makes a shell complete this command",
        "completion bash > ~/.local/share/bash-completion/completions/meshbook",
    ).add_argument("shell", choices=("bash", "zsh"), help="the shell")
    return parser


def _add_lab(parser: argparse.ArgumentParser) -> None:
    _add_rest(parser, "options of JupyterLab, such as --no-browser or --notebook-dir DIR")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _complete_files(parser.add_argument("target", metavar="TARGET", help="a notebook (.ipynb), a script, or a module"))
    _add_rest(parser, "for a notebook, more options; for a script, its arguments")
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="run on other hosts: slurm:4, slurm (this allocation), ssh:gpu1,gpu2, ray:4, local:2, cluster.toml or a "
        "name in hosts.toml (default: this host)",
    )
    parser.add_argument(
        "--gpus",
        "--procs",
        dest="gpus",
        type=_read_size,
        metavar="N",
        help="number of ranks on each host (default: one per GPU)",
    )
    notebook = parser.add_argument_group(
        "notebooks",
        "With --hosts or --gpus the mesh is started before the first cell, and takes the place of that of the "
        "notebook's own `%mesh up`.",
    )
    notebook.add_argument("--name", metavar="NAME", help="name of that mesh (default: mesh)")
    notebook.add_argument(
        "-p",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable below the cell tagged `parameters`: a Python value, else text (repeatable)",
    )
    _complete_files(
        notebook.add_argument(
            "-o",
            dest="output",
            metavar="FILE",
            help="the executed copy, with a page (.html) beside it (default: NOTEBOOK.out.ipynb)",
        )
    )
    notebook.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        help="go on from the checkpoints (meshbook.checkpoint) of the run before (default: if that did not complete, "
        "and had the same parameters)",
    )
    script = parser.add_argument_group("scripts")
    script.add_argument("-m", dest="module", action="store_true", help="run TARGET as a module")
    script.add_argument(
        "--curves",
        metavar="PATH",
        help="write what the ranks log by meshbook.log to PATH (.parquet, .csv, or a folder)",
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    _complete_files(parser.add_argument("notebook", metavar="NOTEBOOK", help="the notebook"))
    _complete_files(parser.add_argument("-o", dest="output", metavar="FILE", help="the script (default: NOTEBOOK.py)"))


def _add_attached(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help=f"{RUN_HELP} (default: the only one)")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="", help="the id of the run, or a prefix of it (default: the only one)"
    )
    parser.add_argument(
        "-o", dest="output", default="trace.json.gz", metavar="FILE", help="the file (default: %(default)s)"
    )
    parser.add_argument(
        "--last", type=_read_size, metavar="S", help="only the last S seconds (default: all that is known)"
    )


def _add_section(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        type=section_name,
        choices=list(sections()),  # for completion: the type returns one of them
        help="an error class in any case, or words of a message (default: list all)",
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for the current user (default)")
    where.add_argument("--sys-prefix", action="store_true", help=f"in this environment, {sys.prefix}")
    where.add_argument("--prefix", metavar="DIR", help="in DIR/share/jupyter/kernels")


def _add_rest(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help=meaning)


def _complete_files(action: argparse.Action) -> None:
    action.complete = FILES  # type: ignore[attr-defined]  # shtab looks for this attribute


def _read_size(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, not {text!r}")
    return int(text)
