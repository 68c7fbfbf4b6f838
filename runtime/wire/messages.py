"""The messages that nodes exchange: one small struct each. Bodies (pickles) travel beside them, see `frames`.

A node gets the address of a peer from its `Hello`, the first message on every connection. All other messages identify
their sender by its node id alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from meshbook.runtime.errors import ExitReport

Place = tuple[int, tuple[str, ...], tuple[int, ...]]  # rank, dimension names, sizes: a point of the called mesh


class Address(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The address of a node: its id, and its URL, which begins with that of its host."""

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
    """Identifies the sending node, its run and its address for replies. Other messages need an earlier Hello."""

    sender: Address
    run: str
    incarnation: int = 0  # number of processes that have been this node before, under the same name and address
    takes_over: bool = False  # this process continues with what those have spawned, which did not end with them


class Spawn(Message, frozen=True, tag="s"):
    """Create an actor; body: (class, args, kwargs). Answered by a Reply once it is constructed."""

    sender: str
    call: int
    actor: str
    place: Place
    origin: str
    creator: Creator | None = None  # None: the client
    on_main: bool = False
    is_restored: bool = False  # it existed before, and was lost


# What a call runs: an endpoint; a plain method that returns its result or replies through a port; or the replacement of
# the actor's class by the argument.
Manner = Literal["", "method", "port", "reload"]


class Call(Message, frozen=True, tag="c"):
    """Run an endpoint; body: (args, kwargs). With `call` 0 there is no reply.

    With `reply_to` the reply goes to the port `call` of that node, instead of to the sender. `by` is the actor that is
    notified if a call without a reply cannot be delivered. `via` is not sent: the receiving node sets it to the sending
    node when it replaces `sender` by the node of the port.
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
    """The reply to a Spawn, a Call or a Stop; body: the value, or the text of an error and its exception.

    A message to a port is a Reply, too; its status is "sent" if it is an exception. `rank` is then the sender's rank in
    the called mesh, and `by` the actor that is notified if the port is closed.
    """

    sender: str
    call: int
    status: Literal["ok", "error", "lost", "sent"]
    rank: int = 0
    by: str = ""


class Stop(Message, frozen=True, tag="x"):
    """End an actor after the messages before this one. Answered by a Reply."""

    sender: str
    call: int
    actor: str
    reason: str


class Credit(Message, frozen=True, tag="w"):
    """This many calls, with this many bytes in their bodies, have left an actor's queue: there is room for others."""

    sender: str
    actor: str
    messages: int
    size: int


class HoldRequest(Message, frozen=True, tag="o"):
    """Another process is about to replace this node: after the reply, hold all messages for it until its Hello."""

    sender: str
    call: int
    incarnation: int = 0  # the one that is about to end


class Down(Message, frozen=True, tag="d"):
    """Nodes have ended, as observed by their agent: no more replies come from them."""

    sender: str
    reports: list[ExitReport]


class CastTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One receiver of a cast. `number` counts the casts to it, and `mark` names the mark that it waits for first.

    `seen` is the number of its last `RelayedOutput` that has arrived.
    """

    node: str
    call: int
    rank: int
    number: int
    mark: int
    incarnation: int
    seen: int


class CastGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The receivers on one host, and its agent."""

    agent: Address
    targets: list[CastTarget]


class Cast(Message, frozen=True, tag="m"):
    """A call for many ranks, which agents forward; body: the frame of a Call, complete but for its number and rank.

    `origin` is the caller, in this incarnation, and `cast` the number of the call among its casts. The agent forwards
    it to the workers of its own host, and passes the other groups on to their agents.
    """

    sender: str
    origin: Address
    incarnation: int
    cast: int
    groups: list[CastGroup]
    number_at: int  # position of the call number in the frame
    rank_at: int


class Relayed(Message, frozen=True, tag="y"):
    """A cast for one rank, from its agent; body: the frame of the Call. The last fields are as in CastTarget."""

    sender: str
    origin: Address
    incarnation: int  # of the caller
    cast: int
    number: int
    mark: int
    seen: int


class RelayedOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last output of a call, on its way with the reply: the frames of Calls. `number` counts those of the process.

    `incarnation` is that of the process.
    """

    number: int
    incarnation: int
    frames: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.frames))


class GatheredReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Reply to a cast, with its body in one part. The caller handles it once this mark of its node has arrived."""

    node: str
    call: int
    status: Literal["ok", "error", "lost"]
    rank: int
    body: bytes
    cast: int
    mark: int
    output: RelayedOutput | None = None


class Gathered(Message, frozen=True, tag="g"):
    """Replies to casts, on their way up to the caller."""

    sender: str
    to: Address
    replies: list[GatheredReply]


class Mark(Message, frozen=True, tag="q"):
    """Sent directly: casts and gathered replies that name this mark follow the direct messages before it."""

    sender: str
    number: int


class Fence(Message, frozen=True, tag="f"):
    """Sent directly: so many casts precede the direct messages after it. With `is_lost`, no longer wait for them."""

    sender: str
    number: int
    is_lost: bool = False


Any = Hello | Spawn | Call | Reply | Stop | Credit | HoldRequest | Down | Cast | Relayed | Gathered | Mark | Fence
