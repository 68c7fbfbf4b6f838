"""Answers by explicit response ports: out of order, by a later call, by an actor that the port was handed to."""

from __future__ import annotations

from monarch.actor import (
    Actor,
    Channel,
    Port,
    context,
    current_rank,
    endpoint,
    send,
    shutdown_context,
    this_host,
    this_proc,
)


class Desk(Actor):
    """Keeps questions until it is asked to answer them."""

    def __init__(self) -> None:
        self.open: dict[str, Port[str]] = {}

    @endpoint(explicit_response_port=True)
    def ask(self, port: Port[str], question: str) -> None:
        if question == "nothing?":
            port.exception(ValueError("that is no question"))
        else:
            self.open[question] = port

    @endpoint
    def answer(self, question: str) -> int:
        self.open.pop(question).send(f"{question} yes, says {context().actor_instance.rank['gpus']}")
        return len(self.open)

    @endpoint(explicit_response_port=True)
    def answer_all(self, port: Port[list[str]], clerk: Clerk) -> None:
        """Newest first; the oldest is left to the clerk, who answers this call as well."""
        (oldest, its_port), *newer = self.open.items()
        for question, theirs in reversed(newer):
            theirs.send(f"{question} no, says {current_rank().rank}")
        clerk.finish.broadcast(oldest, its_port, [question for question, _ in reversed(newer)], port)
        self.open.clear()


class Clerk(Actor):
    @endpoint
    def finish(self, question: str, port: Port[str], others: list[str], reply_handler: Port[list[str]]) -> None:
        port.send(f"{question} ask again, says the clerk")
        reply_handler.send([*others, question])


def main() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    desks = procs.spawn("desks", Desk)
    clerk = this_proc().spawn("clerk", Clerk)
    first, second = desks.slice(gpus=0), desks.slice(gpus=slice(1, 2))

    # The second question is answered before the first one.
    is_it = first.ask.call_one("is it?")
    was_it = first.ask.call_one("was it?")
    print(first.answer.call_one("was it?").get(), "open")
    print(was_it.get())
    try:
        is_it.get(timeout=0.05)
    except TimeoutError:
        print("is it? is still open")
    print(first.answer.call_one("is it?").get(), "open")
    print(is_it.get())

    # A call of the whole mesh, whose ranks are answered at different times.
    everyone = desks.ask.call("everyone?")
    first.answer.call_one("everyone?").get()
    second.answer.broadcast("everyone?")
    answers = everyone.get()
    print(answers.sizes, answers.item(gpus=0), "and", answers.slice(gpus=1).item())

    asked = [second.ask.call(f"{number}?") for number in range(3)]
    print("order", *second.answer_all.call_one(clerk).get())
    for answer in asked:
        print([(str(place), text) for place, text in answer.get()])

    try:
        first.ask.call_one("nothing?").get()
    except ValueError as error:
        print("ValueError:", error)

    # No future at all: the answers go to a port of ours, with the rank of each callee.
    port, receiver = Channel[str].open_ranked()
    send(desks.ask, ("ports?",), {}, port=port)
    desks.slice(gpus=1).answer.call_one("ports?").get()
    print(receiver.recv().get())
    desks.slice(gpus=0).answer.call_one("ports?").get()
    print(receiver.recv().get())

    procs.stop().get()
    shutdown_context().get()


if __name__ == "__main__":
    main()
