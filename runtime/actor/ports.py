"""Ports: where actors send values that no single call waits for, and the receiver that takes them in order.

`Channel.open()` makes a pair. An endpoint marked `explicit_response_port=True` gets a port to its caller instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from meshbook.runtime.actor.context import CURRENT, context, context_in, present_run, sender_run
from meshbook.runtime.actor.future import Future

T = TypeVar("T")


class Port(Generic[T]):
    """Takes values for whoever holds its receiver. It can be sent to actors, and each sends under its own name.

    What an actor sends where nobody receives any more comes back to its `_handle_undeliverable_message`, unless
    `return_undeliverable` is set to False.
    """

    __slots__ = ("_address", "_number", "_once", "return_undeliverable")

    def __init__(self, address: Any, number: int, once: bool = False, return_undeliverable: bool = True) -> None:
        self._address = address  # of the node that receives
        self._number = number
        self._once: bool | None = once  # takes one message; None: it has been sent from here
        self.return_undeliverable = return_undeliverable

    def send(self, value: T) -> None:
        """Send a value; PickleError and MessageTooLarge are raised here.

        RuntimeError for a second message to a port for one, where the first was sent by this very object.
        """
        self._send(value, context().message_rank.rank)

    def _send(self, value: T, rank: int) -> None:
        self._refuse_second()
        returns = self.return_undeliverable
        self._post(lambda ports: ports.send(self._address, self._number, rank, value, returns=returns))
        self._note_sent()

    def _post(self, post: Callable[[Any], None]) -> None:
        node: PortNode = context().actor_instance.node
        post(node.ports)

    def exception(self, error: BaseException) -> None:
        """Let a `recv`, or the call that this port answers, raise this error; an ActorError where it cannot travel.

        RuntimeError as `send` has it.
        """
        _check_exception(error)
        self._refuse_second()
        returns = self.return_undeliverable
        self._post(lambda ports: ports.fail(self._address, self._number, error, returns=returns))
        self._note_sent()

    def _refuse_second(self) -> None:
        if self._once is None:
            raise RuntimeError("this port was opened for one message, and has been sent it: open one with once=False")

    def _note_sent(self) -> None:
        if self._once:
            self._once = None

    def _hand_over(self) -> None:
        """From now on somebody else sends here, instead of this process."""

    def _place(self) -> tuple[Any, int]:
        """Where the code here, or whoever gets a message that is sent from here, sends to this port."""
        here = CURRENT.get()
        node: PortNode | None = None if here is None else here.actor_instance.node
        if node is None or node.relay is None:
            return self._address, self._number
        return node.relay(self._address, self._number, once=self._once is not False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (*self._place(), self._once is not False, self.return_undeliverable)

    def __repr__(self) -> str:
        return f"<Port {self._number} of {self._address.node}>"


class HandedPort(Port[T]):
    """A port of another run, as a client of that run has it."""

    __slots__ = ("_run",)

    def __init__(self, run: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._run = run

    def _post(self, post: Callable[[Any], None]) -> None:
        here = context_in(self._run)
        here.run(post, here.actor_instance.node.ports)

    def _place(self) -> tuple[Any, int]:
        return (self._address, self._number) if present_run() == self._run else super()._place()


def _arrive(*arguments: Any) -> Port[Any]:
    run = sender_run.get()
    return HandedPort(run, *arguments) if run else Port(*arguments)


class ResponsePort(Port[T]):
    """The port of one call: its first value, or exception, is the answer; what comes after that is dropped.

    A caller that named a port of its own (`send`) takes all of them, as sent by the rank that was called. `settled`
    is called when this process need not care any more: it has answered, or somebody else will.
    """

    __slots__ = ("_rank", "_settled")

    def __init__(self, address: Any, number: int, rank: int, settled: Callable[[], object] = lambda: None) -> None:
        super().__init__(address, number, return_undeliverable=False)
        self._rank = rank
        self._settled = settled

    def send(self, value: T) -> None:
        self._send(value, self._rank)
        self._settled()

    def exception(self, error: BaseException) -> None:
        super().exception(error)
        self._settled()

    def _hand_over(self) -> None:
        self._settled()

    def __reduce__(self) -> tuple[Any, ...]:
        place = self._place()
        self._hand_over()
        return ResponsePort, (*place, self._rank)


class PortReceiver(Generic[T]):
    """Takes what was sent to a port, in the order of arrival. Without it the port takes nothing more."""

    def __init__(self, mailbox: MailboxProtocol, drop: Callable[[], object], take: Callable[[Any], T]) -> None:
        self._mailbox = mailbox
        self._take = take
        weakref.finalize(self, drop)

    def recv(self) -> Future[T]:
        """The next value; RuntimeError for a second one of a port for one message.

        Values go to the futures in the order in which those were asked for, also to one that nobody waits for any
        more: after a TimeoutError wait for the same future again.
        """
        return self._mailbox.take(self).then(self._take)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """The same values as (rank, value), with the rank of the sender in the mesh that was called."""
        pairs: PortReceiver[tuple[int, T]] = PortReceiver(self._mailbox, lambda: self, _whole)
        return pairs

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PortReceiver belongs to its process and cannot be pickled: send the Port, which can")


class Channel(Generic[T]):
    """Makes ports: `port, receiver = Channel[int].open()`."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[T], PortReceiver[T]]:
        """A port of this process, and what receives there; with `once` it is for a single message."""
        return _open(once, itemgetter(1))

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[T], PortReceiver[tuple[int, T]]]:
        """The same, with a receiver of (rank, value)."""
        return _open(once, _whole)


def _open(once: bool, take: Callable[[Any], Any]) -> tuple[Port[Any], PortReceiver[Any]]:
    node: PortNode = context().actor_instance.node
    number, mailbox = node.ports.open(once=once)
    return Port(node.address, number, once), PortReceiver(mailbox, lambda: node.ports.close(number), take)


def _check_exception(error: object) -> None:
    if not isinstance(error, BaseException):
        raise TypeError(f"Port.exception takes an exception, not {error!r}; send takes values")


def _whole(pair: Any) -> Any:
    return pair


class MailboxProtocol(Protocol):
    """What a receiver needs of where its values come in."""

    def take(self, receiver: PortReceiver[Any]) -> Future[Any]:
        """The next value, as (rank, value). The receiver is kept as long as somebody waits."""


class PortNode(Protocol):
    """What ports need of the node that they are on."""

    @property
    def address(self) -> Any: ...
    @property
    def ports(self) -> Any: ...  # `runtime.node.ports.Ports`
    @property
    def relay(self) -> Callable[..., tuple[Any, int]] | None: ...
