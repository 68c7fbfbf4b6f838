"""The command `meshbook`, which is also `python -m meshbook`: `meshbook run notebook.ipynb`, `meshbook doctor`.

`cli/command_line.py` has the verbs. What needs more than a few lines is in the other modules of `cli/`; each function
here imports what only its verb needs.
"""

from __future__ import annotations

import argparse
import io
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from typing import TextIO

from meshbook.cli import kernelspecs, print_note
from meshbook.cli.command_line import build_parser
from meshbook.runtime.error_page import WIDTH, format_list, sections


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        # Its own streams, unlike those of a user's program (`formats.encodable`): what it prints must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run_verb(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        if all(has_reader(stream) for stream in (sys.stdout, sys.stderr)):  # another pipe
            raise
        status = 128 + signal.SIGPIPE
    for stream in (sys.stdout, sys.stderr):
        if not has_reader(stream):  # as in `| head -1`: Python would report the failed flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def has_reader(stream: TextIO) -> bool:
    """Whether a stream is anything but a pipe whose reader has gone."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # no file
        return True
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def run_verb(argv: Sequence[str] | None = None) -> int:
    """Run the verb of a command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["lab"] and words[1:] not in (["-h"], ["--help"]):  # argparse would look for its options
        kernelspecs.lab(words[1:])
    parser = build_parser()
    args = parser.parse_args(words)
    if args.version:
        print(f"meshbook {metadata.version('meshbook')}")
        return 0
    match args.verb:
        case None:
            parser.print_help()
            return 2
        case "run":
            return run(args, parser)
        case "export":
            return export(args)
        case "attach":
            return attach(args.run)
        case "trace":
            return trace(args)
        case "runs":
            return list_runs()
        case "end":
            return end_run(args.run)
        case "debug":
            return debug()
        case "explain":
            return explain(args.name)
        case "doctor":
            return doctor()
        case "worker":
            return serve_clients(args.address)
        case "completion":
            return print_completion(args.shell)
    prefix = sys.prefix if args.sys_prefix else args.prefix
    try:
        return kernelspecs.install(prefix) if args.verb == "install" else kernelspecs.uninstall(prefix)
    except OSError as error:
        return fail(f"cannot {args.verb} the kernelspec: {error}")


def fail(text: str) -> int:
    """Print what went wrong; returns the status."""
    print_note(text)
    return 1


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run a notebook or a script."""
    if args.module or not args.target.endswith(".ipynb"):
        if args.parameters or args.output or args.name or args.resume is not None:
            parser.error("-p, -o, --name and --resume are for notebooks")
        if not args.module and not Path(args.target).is_file():
            parser.error(f"no such file: {args.target}")
        return run_script(args)
    target = args.target
    args = parser.parse_args(["run", *args.args, target], args)  # the options after the notebook
    if args.args:
        parser.error(f"unknown argument: {args.target}")
    if args.module or args.curves:
        parser.error("-m and --curves are for scripts")
    source = Path(args.target)
    output = Path(args.output) if args.output else source.with_suffix(".out.ipynb")
    if not source.is_file():
        parser.error(f"no such file: {source}")
    if output.suffix != ".ipynb" or output.absolute() == source.absolute():
        parser.error("-o must be another file, with the suffix .ipynb")
    if not output.absolute().parent.is_dir():
        parser.error(f"no such folder: {output.absolute().parent}")
    if missing := [name for name in ("papermill", "nbconvert") if util.find_spec(name) is None]:
        return fail(f"running notebooks needs {' and '.join(missing)}; run pip install 'meshbook[run]'")
    from meshbook.cli.batch_notebook import BatchJob, read_parameter, run_notebook  # weight, as below

    if args.hosts and args.hosts.partition(":")[0].endswith(".toml"):
        args.hosts = str(Path(args.hosts).absolute())  # the kernel runs in the notebook's folder
    mesh = [
        *(("--hosts", args.hosts) if args.hosts else ()),
        *(("--gpus", str(args.gpus)) if args.gpus else ()),
    ]
    if args.name:
        if not mesh:
            parser.error("--name is the name of the mesh of --hosts and --gpus")
        mesh += ["--name", args.name]
    try:
        parameters = dict(map(read_parameter, args.parameters))
    except ValueError as error:
        parser.error(f"argument -p: {error}")
    return run_notebook(BatchJob(source, output, parameters, tuple(mesh), args.resume))


def run_script(args: argparse.Namespace) -> int:
    """Run a script on every rank, with its own arguments, as `python -m meshbook.spmd` does."""
    from meshbook import spmd

    options = (("--procs", args.gpus), ("--hosts", args.hosts), ("--curves", args.curves))
    words = [word for name, value in options if value for word in (name, str(value))]
    return spmd.run_as_program([*words, *(["-m"] if args.module else []), args.target, *args.args])


def export(args: argparse.Namespace) -> int:
    """Write a notebook as a script; the status is 1 if cells of it cannot be exported."""
    from meshbook.cli import export_script

    source = Path(args.notebook)
    return export_script.export(source, Path(args.output) if args.output else source.with_suffix(".py"))


def attach(name: str) -> int:
    """Show the output of a detached run; the status is 1 if there is no such run."""
    from meshbook.cli.running_runs import follow
    from meshbook.runs import DetachError

    try:
        follow(name)
    except DetachError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        print()
    return 0


def trace(args: argparse.Namespace) -> int:
    """Save the trace of a run; the status is 1 if that fails."""
    from meshbook.cli.running_runs import save_trace
    from meshbook.runtime.errors import MeshbookError

    try:
        print(save_trace(args.run, Path(args.output), args.last))
    except (MeshbookError, OSError) as error:
        return fail(f"cannot save the trace: {error}")
    return 0


def list_runs() -> int:
    """Print a line for each detached run."""
    from meshbook.runtime.hosts.detached_runs import detached_runs, format_runs

    print(format_runs(detached_runs()) or "no detached runs")
    return 0


def end_run(name: str) -> int:
    """End a detached run; the status is 1 if that fails."""
    from meshbook.runs import DetachError, end

    try:
        print(f"run {end(name)} has ended")
    except DetachError as error:
        return fail(str(error))
    return 0


def serve_clients(address: str) -> int:
    """Run a worker loop; the status is 1 if it cannot listen at the address."""
    from meshbook.runtime.hosts.worker_loop import main as run_loop

    try:
        return run_loop(["serve", address])
    except (NotImplementedError, OSError, ValueError) as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 0


def debug() -> int:
    """Read debugger commands until Ctrl-C; the status is 1 if another terminal already does."""
    from meshbook.runtime.config import current_settings, runtime_root
    from meshbook.runtime.hosts.script_debugger import serve_terminal

    def announce() -> None:
        print("waiting for an actor to call breakpoint(); press Ctrl-C to exit", flush=True)

    try:
        serve_terminal(runtime_root(current_settings()), announce)
    except RuntimeError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        print()
    return 0


def explain(name: str | None) -> int:
    """Print a section of the page on errors, or list them all."""
    width = min(shutil.get_terminal_size().columns, WIDTH)
    print(format_list(width) if name is None else sections()[name].format(width))
    return 0


def doctor() -> int:
    """Examine this installation; the status is 1 if a problem keeps meshes from working."""
    from meshbook.magics.doctor import CHECKS
    from meshbook.magics.doctor.finding import examine, format_report, worst_of

    findings = examine(CHECKS)
    print(format_report(findings))
    return int(worst_of(findings) == "problem")


def print_completion(shell: str) -> int:
    """Print the completion code for a shell."""
    import shtab

    print(shtab.complete(build_parser(), shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
