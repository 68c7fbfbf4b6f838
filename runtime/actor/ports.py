"""Ports and their receivers: for values that do not answer a single call.

Actors send values to a port; its receiver takes them in order. `Channel.open()` makes a pair. An endpoint marked
`explicit_response_port=True` receives a port to its caller.
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
    """The sending end of a channel. It can be passed to actors, and each sends under its own name.

    A value that an actor sends to a port without a receiver comes back to the actor's `_handle_undeliverable_message`,
    unless `return_undeliverable` is set to False.
    """

    __slots__ = ("_address", "_number", "_once", "return_undeliverable")

    def __init__(self, address: Any, number: int, once: bool = False, return_undeliverable: bool = True) -> None:
        self._address = address  # of the node that receives
        self._number = number
        self._once: bool | None = once  # accepts one message; None: that message was sent from here
        self.return_undeliverable = return_undeliverable

    def send(self, value: T) -> None:
        """Send a value. Raises PickleError or MessageTooLarge at once.

        Raises RuntimeError for a second message to a port opened with `once`, if this very object sent the first.
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
        """Make a `recv`, or the call that this port answers, raise this error.

        An error that cannot be pickled becomes an ActorError. Raises RuntimeError as `send` does.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"Port.exception() takes an exception, not {error!r}; use send() for values")
        self._refuse_second()
        returns = self.return_undeliverable
        self._post(lambda ports: ports.fail(self._address, self._number, error, returns=returns))
        self._note_sent()

    def _refuse_second(self) -> None:
        if self._once is None:
            raise RuntimeError("this port was opened for one message, which was already sent: open one with once=False")

    def _note_sent(self) -> None:
        if self._once:
            self._once = None

    def _hand_over(self) -> None:
        """Record that another process sends to this port from now on, instead of this one."""

    def _place(self) -> tuple[Any, int]:
        """Return the address and number to which code here, or the receiver of a message sent from here, sends."""
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
    """A port of another run, as a client of that run uses it."""

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
    """The port of one call. Its first value or exception is the answer; later ones are dropped.

    If the caller passed its own port (`send`), that port receives all of them, as sent by the called rank. `settled` is
    called when this process has answered, or has passed the port on to another sender.
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
    """The receiving end of a channel: takes values in order of arrival. When it is dropped, the port closes."""

    def __init__(self, mailbox: MailboxProtocol, drop: Callable[[], object], take: Callable[[Any], T]) -> None:
        self._mailbox = mailbox
        self._take = take
        weakref.finalize(self, drop)

    def recv(self) -> Future[T]:
        """Return a future of the next value. RuntimeError for a second value of a port opened with `once`.

        Values resolve the futures in the order of the `recv` calls, including futures that are no longer waited for.
        After a TimeoutError, wait for the same future again.
        """
        return self._mailbox.take(self).then(self._take)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """Return a receiver of (rank, value) pairs, with the sender's rank in the mesh that was called."""
        pairs: PortReceiver[tuple[int, T]] = PortReceiver(self._mailbox, lambda: self, _whole)
        return pairs

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PortReceiver belongs to its process and cannot be pickled: send the Port instead")


class Channel(Generic[T]):
    """The factory of ports: `port, receiver = Channel[int].open()`."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[T], PortReceiver[T]]:
        """Open a port in this process and return it with its receiver. `once`: the port accepts a single message."""
        return _open(once, itemgetter(1))

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[T], PortReceiver[tuple[int, T]]]:
        """Open a port like `open`, with a receiver of (rank, value) pairs."""
        return _open(once, _whole)


def _open(once: bool, take: Callable[[Any], Any]) -> tuple[Port[Any], PortReceiver[Any]]:
    node: PortNode = context().actor_instance.node
    number, mailbox = node.ports.open(once=once)
    return Port(node.address, number, once), PortReceiver(mailbox, lambda: node.ports.close(number), take)


def _whole(pair: Any) -> Any:
    return pair


class MailboxProtocol(Protocol):
    """The mailbox from which a receiver takes its values."""

    def take(self, receiver: PortReceiver[Any]) -> Future[Any]:
        """Return a future of the next (rank, value). The receiver stays alive while that future is waited for."""


class PortNode(Protocol):
    """The attributes that ports need from their node."""

    @property
    def address(self) -> Any: ...
    @property
    def ports(self) -> Any: ...  # `runtime.node.ports.Ports`
    @property
    def relay(self) -> Callable[..., tuple[Any, int]] | None: ...
