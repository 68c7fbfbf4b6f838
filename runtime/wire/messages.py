"""Every message that nodes exchange: one small struct each. Bodies (pickles) travel beside them, see `frames`.

A node learns where a peer lives from its `Hello`, which is the first message on every connection; all the others name
their sender by its node id alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from meshbook.runtime.errors import ExitReport

Place = tuple[int, tuple[str, ...], tuple[int, ...]]  # rank, dimension names, sizes: a point of the called mesh


class Address(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a node is reached: its id, and its URL, which begins with that of its host."""

    node: str
    url: str


class Creator(msgspec.Struct, frozen=True, array_like=True):
    """The actor that spawned another: its key, class and place, and its own creator."""

    key: str
    class_name: str
    place: Place
    creator: Creator | None = None


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="k", gc=False):
    """The base of all of them. The garbage collector skips messages: they contain plain data, hence no cycles."""


class Hello(Message, frozen=True, tag="h"):
    """I am this node, of this run, and answers reach me there. Without it nothing else of a sender is accepted."""

    sender: Address
    run: str
    incarnation: int = 0  # how many this node has had before, by the same name and at the same address
    takes_over: bool = False  # this process goes on with what those had spawned, which has not ended with them


class Spawn(Message, frozen=True, tag="s"):
    """Create an actor; body: (class, args, kwargs). Answered by a Reply once it is constructed."""

    sender: str
    call: int
    actor: str
    place: Place
    origin: str
    creator: Creator | None = None  # None: the client
    on_main: bool = False
    again: bool = False  # it has been there before, and is lost


# What a call asks for: an endpoint; a method that is none, and returns or answers by a port; or that the actor take on
# the class which is the argument.
Manner = Literal["", "method", "port", "reload"]


class Call(Message, frozen=True, tag="c"):
    """Run an endpoint; body: (args, kwargs). `call` 0 wants no answer.

    With `reply_to` the answer goes to the port `call` of that node, instead of to the sender. `by` is the actor that
    hears of it where a call that wants no answer cannot be delivered. `via` is not sent: it is the node that sent the
    call, once the receiving one has put that of the port in its place.
    """

    sender: str
    call: int
    actor: str
    endpoint: str
    place: Place
    origin: str
    manner: Manner = ""
    reply_to: Address | None = None
    by: str = ""
    via: str = ""


class Reply(Message, frozen=True, tag="r"):
    """The answer to a Spawn, a Call or a Stop; body: the value, or the text of an error and its exception.

    What is sent to a port is one as well, "sent" where it is an exception; `rank` is then that of who sends it, in the
    mesh that was called, and `by` the actor that hears of it where nobody receives there.
    """

    sender: str
    call: int
    status: Literal["ok", "error", "lost", "sent"]
    rank: int = 0
    by: str = ""


class Stop(Message, frozen=True, tag="x"):
    """End an actor after the messages before this one; answered by a Reply."""

    sender: str
    call: int
    actor: str
    reason: str


class Credit(Message, frozen=True, tag="w"):
    """So many calls, with so many bytes in their bodies, are out of an actor's queue: there is room for others."""

    sender: str
    actor: str
    messages: int
    size: int


class HoldRequest(Message, frozen=True, tag="o"):
    """Another process is about to be this node: send nothing here after the answer to this, until that says Hello."""

    sender: str
    call: int
    incarnation: int = 0  # that is about to end


class Down(Message, frozen=True, tag="d"):
    """A node ended, by the word of the agent that watched it: nobody will answer from there any more."""

    sender: str
    report: ExitReport


Any = Hello | Spawn | Call | Reply | Stop | Credit | HoldRequest | Down
