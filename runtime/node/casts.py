"""Casts: a call on many ranks goes to the agents of their hosts, which forward it; the replies are gathered there.

    caller -- Cast --> up to 16 agents -- Cast --> up to 16 other agents each ... -- Relayed --> workers
    caller <-- Gathered -- agents <-- Gathered -- agents ... <-- Gathered -- workers

Agents relay because they run no user code: a rank that is stuck delays no other rank. The worker gets the Call that the
caller would have sent directly, with the caller's name and call number. So cancellation, deadlock detection, credits
and traces do not know of casts. `ordering` keeps the order with direct messages.

An agent sends the replies to a cast up once all are there, or after `GATHER_SECONDS`, so that a slow rank delays no
other one. Only small calls and replies go this way; the others, and all that is not a call on many ranks, go directly.

When an agent ends, its workers end too, and their Down fails the calls. An agent may also relay for other hosts, if
there are more than 16. Casts and replies may then be lost with it, so the caller fails those calls, which may have run
(`CastSender._lose`).
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import itertools
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from meshbook.runtime.errors import ExitReport, RefusedMessage, SupervisionError
from meshbook.runtime.node.call_table import CallTable, Target, is_alike
from meshbook.runtime.node.ordering import Inbound, SendOrder
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.threads import items_of, notify
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.wire.frames import Body, BodyElsewhere, Buffer, CallFrames, fill_in, pack, unpack
from meshbook.runtime.wire.messages import (
    Address,
    Call,
    Cast,
    CastGroup,
    CastTarget,
    Fence,
    Gathered,
    GatheredReply,
    Mark,
    Message,
    Relayed,
    RelayedOutput,
    Reply,
)

logger = logging.getLogger(__name__)

FAN_OUT = 16
MOST_BYTES = 1 << 15  # largest call or reply that agents relay
LEAST_LIMIT = 1 << 24  # with a smaller limit for messages, bundles might exceed it
BUNDLE_BYTES = 1 << 20  # gathered replies of this size are sent on at once
GATHER_SECONDS = 0.01
REMEMBERED = 1024  # casts whose missing replies a node counts; of older ones, replies are sent on after a delay

REMEMBERED_MESHES = 64  # whose ranks a node has grouped by agent

Handle = Callable[[Message, Body], None]
Fail = Callable[[int, PeerGone], None]  # gets the index of a target


@dataclass(frozen=True, slots=True)
class CastPlan:
    """The targets of a call that agents can reach, agent by agent: their indices, nodes and queues."""

    agents: list[tuple[Address, int]]  # each with its number of targets
    indices: list[int]
    nodes: list[str]
    queues: list[tuple[str, str]]  # node and actor, as flow control names them
    is_alike: bool  # see `call_table.is_alike`; of all targets

    def only(self, positions: Sequence[int]) -> CastPlan:
        """Return the plan of the targets at these positions, which are in order."""
        ends = list(itertools.accumulate(count for _, count in self.agents))
        counts = collections.Counter(bisect.bisect_right(ends, position) for position in positions)
        return CastPlan(
            [(self.agents[place][0], count) for place, count in counts.items()],
            [self.indices[position] for position in positions],
            [self.nodes[position] for position in positions],
            [self.queues[position] for position in positions],
            self.is_alike,
        )


class CastSender:
    """Sends the casts of a node. A controller adds the agents that relay; other nodes have none, and call directly."""

    def __init__(
        self, routes: Routes, table: CallTable, loop: IoLoop, *, incarnation: int, least: int, limit: int
    ) -> None:
        self._agents: dict[str, Address] = {}  # by the prefix of their host
        self._plans: dict[int, tuple[Sequence[Target], CastPlan]] = {}  # by id() of the targets, which are kept
        self._routes = routes
        self._table = table
        self._loop = loop
        self._incarnation = incarnation
        self._least = least
        self._limit = limit
        self._count = 0
        # With more than `FAN_OUT` hosts: by an agent that relays, those that it relays to; and the casts without all of
        # their replies.
        self._below: defaultdict[str, set[str]] = defaultdict(set)
        self._waiting: deque[tuple[Sequence[int], Sequence[CastGroup]]] = deque()

    def takes(self, count: int, size: int) -> bool:
        """Whether a call on so many ranks, with a body of this size, may go through agents."""
        if self._routes.is_closed:  # a direct call fails at once
            return False
        return count >= self._least > 0 and size <= MOST_BYTES and bool(self._agents) and self._limit >= LEAST_LIMIT

    def add_agent(self, agent: Address) -> None:
        """Send casts for the nodes of a host through its agent from now on."""
        self._agents[host_of(agent)] = agent
        self._plans.clear()

    def remove_agent(self, agent: Address) -> None:
        """Send nothing through this agent any more."""
        self._agents.pop(host_of(agent), None)
        self._plans.clear()

    def plan(self, targets: Sequence[Target]) -> CastPlan:
        """Return the plan of a cast to these targets. It leaves out an agent with a single one, which does not help."""
        known = self._plans.get(id(targets))
        if known is not None and known[0] is targets:
            return known[1]
        groups: dict[Address, list[int]] = {}
        for index, target in enumerate(targets):
            if (agent := self._agents.get(host_of(target.address))) is not None:
                groups.setdefault(agent, []).append(index)
        agents = [(agent, len(indices)) for agent, indices in groups.items() if len(indices) > 1]
        indices = [index for agent, _ in agents for index in groups[agent]]
        nodes = [targets[index].address.node for index in indices]
        queues = [(targets[index].address.node, targets[index].actor) for index in indices]
        plan = CastPlan(agents, indices, nodes, queues, is_alike(targets))
        if isinstance(targets, tuple):  # the same for every call on a mesh
            if len(self._plans) >= REMEMBERED_MESHES:
                self._plans.clear()
            self._plans[id(targets)] = targets, plan
        return plan

    def send(
        self,
        frames: CallFrames,
        targets: Sequence[Target],
        calls: Sequence[int],
        first: int,
        plan: CastPlan,
        fail: Fail,
    ) -> None:
        """Send a call to the targets of the plan; `first` is the rank of the first target.

        `fail` gets the index of each target that is gone, on the I/O thread.
        """
        counted: list[SendOrder] = []
        try:
            self._routes.expect_casts(plan.nodes, counted)
            # The I/O thread alone numbers casts. A Ctrl-C here cannot leave a gap that a receiver would wait for.
            self._loop.call_soon(functools.partial(self._send, frames, targets, calls, first, plan, fail, counted))
        except BaseException:  # a Ctrl-C, perhaps after the cast was passed on
            self._loop.call_soon(functools.partial(_uncount, counted))
            raise

    def _send(
        self,
        frames: CallFrames,
        targets: Sequence[Target],
        calls: Sequence[int],
        first: int,
        plan: CastPlan,
        fail: Fail,
        counted: list[SendOrder],
    ) -> None:
        streams = counted.copy()
        counted.clear()  # each is done below
        self._count += 1
        routes, groups = self._routes, []
        find, down, incarnation_of = routes.streams.get, routes.down, routes.incarnation_by_node.get
        receivers = zip(plan.indices, plan.nodes, streams, strict=True)
        for agent, count in plan.agents:
            aimed = []
            for index, node, stream in itertools.islice(receivers, count):  # for each rank: no calls to spare
                if node in down or find(node) is not stream:  # it has ended, and perhaps restarted
                    fail(index, PeerGone("it has restarted since"))
                    continue
                if stream.direct > stream.marked:
                    try:
                        routes.mark(targets[index].address, stream)
                    except PeerGone as gone:
                        stream.done += 1
                        fail(index, gone)
                        continue
                stream.casts = number = stream.casts + 1
                stream.done += 1  # after `casts`: from here on, a direct message needs a fence
                rank, mark, incarnation = first + index, stream.mark, incarnation_of(node, 0)
                aimed.append(CastTarget(node, calls[index], rank, number, mark, incarnation, stream.seen))
            if aimed:
                groups.append(CastGroup(agent, aimed))
        template = bytes(frames.template)
        parts = _split(groups)
        if len(self._agents) > FAN_OUT:  # `_lose` gives up all casts to a host, those that no agent has relayed too
            self._note_relays(parts)
            for _ in range(min(2, len(self._waiting))):  # two for each that is added, so finished ones do not pile up
                if self._table.is_any_open((waiting := self._waiting.popleft())[0]):
                    self._waiting.append(waiting)
            if calls[0]:  # not a broadcast
                self._waiting.append((calls, groups))
        for part in parts:
            place = frames.number_at, frames.rank_at
            cast = Cast(routes.own.node, routes.own, self._incarnation, self._count, part, *place)
            try:
                routes.send(part[0].agent, pack(cast, (template,), self._limit))
            except PeerGone:
                # The Down of its workers fails their calls.
                self._lose(part[0].agent.node)

    # -- the end of an agent that relays for other hosts ----------------------------------

    def _note_relays(self, parts: Sequence[Sequence[CastGroup]]) -> None:
        for head, *rest in parts:
            if rest:
                self._below[head.agent.node].update([group.agent.node for group in rest])
                self._note_relays(_split(rest))

    def note_end(self, report: ExitReport) -> None:
        """Handle the end of a node."""
        if report.node in self._below:
            self._lose(report.node)

    def _lose(self, agent: str) -> None:
        """Fail the pending casts that this agent relayed to other hosts: they, or their replies, may be lost."""
        below = self._below.pop(agent, set())
        if not below:
            return
        logger.warning("the host agent %s has ended: broadcasts that it relayed just before may be lost", agent)
        why = f"went through the host agent {agent}, which has ended; it may have run. Call it again if that is safe"
        for _, groups in self._waiting:
            for target in itertools.chain.from_iterable(each.targets for each in groups if each.agent.node in below):
                if target.call and (found := self._table.take(target.call)) is not None:
                    notify(
                        functools.partial(found[0].refuse, found[1]),
                        SupervisionError(f"the call to {target.node} {why}"),
                    )
        hosts = {host for host, each in items_of(self._agents) if each.node in below}
        for node, stream in items_of(self._routes.streams):
            to = self._routes.find(node)
            if to is not None and node not in self._routes.down and host_of(to) in hosts:
                self._routes.give_up_casts(to, stream)


def _uncount(counted: Sequence[SendOrder]) -> None:
    """Count casts as sent that were not passed on."""
    for stream in counted:
        stream.done += 1


def _split(groups: Sequence[CastGroup]) -> list[list[CastGroup]]:
    """Split groups into at most `FAN_OUT` parts; the agent of the first group of each part relays to the others."""
    size = -(-len(groups) // FAN_OUT)
    return [list(groups[start : start + size]) for start in range(0, len(groups), size or 1)]


class Relay:
    """Forwards the casts of other nodes to the workers of this host, and gathers their replies. For the I/O thread."""

    def __init__(self, routes: Routes, loop: IoLoop, limit: int) -> None:
        self.gather_seconds = GATHER_SECONDS
        self._routes = routes
        self._loop = loop
        self._limit = limit
        # By caller and cast: the replies to come, and the node that the cast came from.
        self._open: OrderedDict[tuple[str, int], _OpenCast] = OrderedDict()
        self._early: dict[str, list[tuple[int, Address, Buffer]]] = {}  # by node: incarnation, address, frame
        self._bundles: dict[tuple[Address, Address], _Bundle] = {}  # by caller and next node

    def on_cast(self, cast: Cast, body: Body) -> None:
        routes, origin = self._routes, cast.origin
        routes.learn(origin)
        own, *others = cast.groups
        count = self._forward(cast, own, bytes(body[0]))
        for part in _split(others):
            passed = msgspec.structs.replace(cast, sender=routes.own.node, groups=part)
            routes.learn(part[0].agent)
            with contextlib.suppress(PeerGone):  # the caller gets the Down of that host
                routes.send(part[0].agent, pack(passed, body, self._limit))
                count += sum(len(group.targets) for group in part)
        if own.targets[0].call and count:
            self._open[origin.node, cast.cast] = _OpenCast(count, routes.address_of(cast.sender))
            if len(self._open) > REMEMBERED:
                self._open.popitem(last=False)

    def _forward(self, cast: Cast, group: CastGroup, template: bytes) -> int:
        """Send the call to each worker; return to how many. The caller gets the Down of one that has ended."""
        routes, count = self._routes, 0
        name, prefix = routes.own.node, host_of(routes.own)
        for target in group.targets:
            node = target.node
            frame = fill_in(template, cast.number_at, target.call, cast.rank_at, target.rank)
            order = target.number, target.mark, target.seen
            relayed = Relayed(name, cast.origin, cast.incarnation, cast.cast, *order)
            to, packed = Address(node, prefix + node), pack(relayed, (frame,), self._limit)
            if target.incarnation > routes.incarnation_of(node):  # the caller restarts it, and this agent is about to
                self._early.setdefault(node, []).append((target.incarnation, to, packed))
                count += 1
            elif target.incarnation == routes.incarnation_of(node):
                with contextlib.suppress(PeerGone):
                    routes.send(to, packed)
                    count += 1
        return count

    def note_restarted(self, node: str) -> None:
        """Send the casts that have waited for the restart of a worker."""
        for incarnation, to, packed in self._early.pop(node, ()):
            if incarnation == self._routes.incarnation_of(node):
                with contextlib.suppress(PeerGone):
                    self._routes.send(to, packed)

    def on_gathered(self, gathered: Gathered, body: Body) -> None:
        """Add replies to a caller elsewhere."""
        to, complete = gathered.to, set()
        for reply in gathered.replies:
            key = to.node, reply.cast
            cast = self._open.get(key)
            place = to, to if cast is None or cast.parent.node in self._routes.down else cast.parent
            bundle = self._bundles.get(place)
            if bundle is None:
                bundle = self._bundles[place] = _Bundle()
                self._loop.call_later(self.gather_seconds, functools.partial(self._send_on, place, bundle))
            bundle.replies.append(reply)
            bundle.size += len(reply.body) + (reply.output.size if reply.output is not None else 0)
            if cast is not None:
                cast.missing -= 1
                if not cast.missing:
                    del self._open[key]
            if bundle.size > BUNDLE_BYTES or (cast is not None and not cast.missing):
                complete.add(place)
        for place in complete:
            self._send_on(place, self._bundles[place])

    def _send_on(self, place: tuple[Address, Address], bundle: _Bundle, *, directly: bool = False) -> None:
        if self._bundles.get(place) is not bundle:  # sent before
            return
        del self._bundles[place]
        to, next_node = place
        with contextlib.suppress(PeerGone):  # the caller has ended, or gets the Down of the agent between
            self._routes.send(
                to if directly else next_node,
                pack(Gathered(self._routes.own.node, to, bundle.replies), (), self._limit),
            )

    def send_all_on(self) -> None:
        """Send on all gathered replies, before the Down of a node that some of them may come from."""
        for place, bundle in list(self._bundles.items()):
            self._send_on(place, bundle, directly=True)  # as the Down goes


class _OpenCast:
    """A cast with replies to come."""

    __slots__ = ("missing", "parent")

    def __init__(self, missing: int, parent: Address) -> None:
        self.missing = missing
        self.parent = parent


class _Bundle:
    """Gathered replies."""

    __slots__ = ("replies", "size")

    def __init__(self) -> None:
        self.replies: list[GatheredReply] = []
        self.size = 0


class CastReceiver:
    """Receives casts for this node and gathered replies to it, each in its turn among the direct messages.

    For the I/O thread, except for replies.
    """

    handle: Handle  # handles a message of another node; that of the dispatch
    handle_replies: Callable[[Sequence[GatheredReply]], None]  # the same for gathered replies

    def __init__(self, routes: Routes, relay: Relay, *, incarnation: int, first: int, limit: int) -> None:
        self.held: dict[str, Inbound] = {}  # of the nodes whose direct messages wait now
        self._routes = routes
        self._relay = relay
        self._incarnation = incarnation
        self._first = first  # the lowest call number of this process; earlier calls are of the process before
        self._limit = limit
        # By node and incarnation: a cast may arrive before the Hello of the process that has sent it.
        self._inbound: defaultdict[tuple[str, int], Inbound] = defaultdict(Inbound)
        self._owed: dict[tuple[str, int], tuple[Address, int]] = {}  # by caller and call: the agent, and the cast
        self._left: set[str] = set()  # callers that another process is about to replace

    def hold(self, sender: str, item: Callable[[], object]) -> None:
        """Handle a direct message of a node in `held` in its turn."""
        self._inbound_of(sender).add_direct(item)
        self._look(sender)

    def on_relayed(self, relayed: Relayed, body: Body) -> None:
        sender = relayed.origin.node
        self._routes.learn(relayed.origin)
        stream = self._routes.streams.get(sender)
        if stream is not None and relayed.incarnation == self._routes.incarnation_of(sender):
            stream.acknowledge(relayed.seen)
        item = functools.partial(self._receive, relayed, body[0])
        self._inbound[sender, relayed.incarnation].add_cast(relayed.number, relayed.mark, item)
        self._look(sender)

    def _receive(self, relayed: Relayed, frame: Buffer) -> None:
        call, body = unpack(bytes(frame))  # a copy: inside of another frame its buffers are not aligned
        if not isinstance(call, Call) or call.sender != relayed.origin.node or isinstance(body, BodyElsewhere):
            raise RefusedMessage(f"a cast of {relayed.origin.node!r} that is not a call")
        if call.call and call.sender not in self._left:
            self._owed[call.sender, call.call] = self._routes.address_of(relayed.sender), relayed.cast
        self.handle(call, body)

    def on_gathered(self, gathered: Gathered, body: Body) -> None:
        if gathered.to.node != self._routes.own.node:
            return self._relay.on_gathered(gathered, body)
        find, incarnation_of = self._inbound.get, self._routes.incarnation_by_node.get
        first, handle = self._first, self.handle_replies
        ready = []
        for each in gathered.replies:  # for each rank: no calls to spare
            node, mark = each.node, each.mark
            # The marks of an adopted call have arrived at the process before.
            if mark and each.call >= first:
                inbound = find((node, incarnation_of(node, 0)))
                if inbound is None or mark > inbound.marks:
                    self._inbound_of(node).add_reply(mark, functools.partial(handle, (each,)))
                    continue
            ready.append(each)
        return handle(ready)

    def on_mark(self, mark: Mark, body: Body) -> None:
        self._inbound_of(mark.sender).set_mark(mark.number)
        self._look(mark.sender)

    def on_fence(self, fence: Fence, body: Body) -> None:
        inbound = self._inbound_of(fence.sender)
        if fence.is_lost:
            inbound.give_up(fence.number)
            with contextlib.suppress(PeerGone):  # output may be lost as well
                self._routes.send_copy(self._routes.address_of(fence.sender))
        else:
            inbound.set_fence(fence.number)
        self._look(fence.sender)

    def _inbound_of(self, node: str) -> Inbound:
        return self._inbound[node, self._routes.incarnation_of(node)]

    def _look(self, sender: str) -> None:
        inbound = self._inbound_of(sender)
        if inbound.holds:
            self.held[sender] = inbound
        else:
            self.held.pop(sender, None)

    # -- replies to casts, from any thread -------------------------------------------------

    def owes(self, to: str, call: int) -> bool:
        """Whether this call came as a cast, and has no reply yet."""
        return bool(self._owed) and (to, call) in self._owed

    def drop(self, to: str, call: int) -> None:
        """Forget a call that gets no reply, or gets it another way."""
        if self._owed:
            self._owed.pop((to, call), None)

    def reply(self, to: str, reply: Reply, body: Body, output: Sequence[Buffer] = ()) -> bool:
        """Send the reply to a cast to its agent, from the calling thread; return False if it must be sent directly.

        `output` has the frames of messages to the caller that precede the reply: they travel with it, or directly.
        """
        found = self._owed.pop((to, reply.call), None)
        if found is None or len(body) != 1 or len(body[0]) > MOST_BYTES or reply.status == "sent":
            self._send_directly(to, output)
            return False
        agent, cast = found
        routes = self._routes
        caller, own, stream = routes.address_of(to), routes.own.node, routes.stream_to(to)
        relayed = None
        if output and stream.copy is None and sum(map(len, (*output, *body))) <= MOST_BYTES:
            relayed = RelayedOutput(stream.outputs + 1, self._incarnation, [bytes(frame) for frame in output])
        else:
            self._send_directly(to, output)
        try:
            mark = routes.mark(caller, stream)
            gathered = GatheredReply(own, reply.call, reply.status, reply.rank, bytes(body[0]), cast, mark, relayed)
            frame = pack(Gathered(own, caller, [gathered]), (), self._limit)
            if relayed is not None:
                # Before it is sent: from here on, other threads send direct messages behind the copy.
                stream.outputs = relayed.number
                stream.copy = frame
                if to in self._left:  # as `leave` does
                    stream.copy = None
            routes.send(agent, frame)
        except PeerGone:
            return False
        return True

    def _send_directly(self, to: str, frames: Sequence[Buffer]) -> None:
        with contextlib.suppress(PeerGone):  # the caller has ended
            for frame in frames:
                self._routes.send_soon(self._routes.address_of(to), frame)

    def take_output(self, reply: GatheredReply, output: RelayedOutput) -> Sequence[bytes] | None:
        """Return the frames of the output that has come with a reply; None if both have come before."""
        routes, node = self._routes, reply.node
        if reply.call < self._first:  # of a call of the process before, which has counted differently
            return output.frames
        if node in routes.down or output.incarnation != routes.incarnation_of(node):
            return ()  # its agent has sent what the process had not sent
        stream = routes.stream_to(node)
        if output.number <= stream.seen:
            return None
        stream.seen = output.number
        return output.frames

    # -- ends ------------------------------------------------------------------------------

    def note_end(self, report: ExitReport) -> None:
        """Handle the replies of an ended node that have arrived."""
        if (inbound := self._inbound.pop((report.node, self._routes.incarnation_of(report.node)), None)) is not None:
            inbound.release_replies()
        self.held.pop(report.node, None)

    def forget(self, node: str) -> None:
        """Start anew with a node: another incarnation is about to be registered."""
        self._inbound.pop((node, self._routes.incarnation_of(node)), None)
        self.held.pop(node, None)
        self._left.discard(node)

    def stay(self, node: str) -> None:
        """Send later replies to a node as before: it has not been replaced."""
        self._left.discard(node)

    def leave(self, node: str) -> None:
        """Send later replies to a node directly: another process is about to replace it, and they must be held."""
        self._left.add(node)
        if (stream := self._routes.streams.get(node)) is not None:
            stream.copy = None  # it counts as arrived: the next process could not recognize it
        for key in [key for key in items_of(self._owed) if key[0][0] == node]:
            self._owed.pop(key[0], None)
