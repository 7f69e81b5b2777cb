"""The client half of the engine: a message comes in, its tasks are done, the answer goes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Context, Message

from fedtail.engines.flower.bridge import from_content, to_content
from fedtail.engines.flower.demands import Demands, node_member, side_told
from fedtail.engines.flower.records import Content, sealed, unsealed
from fedtail.engines.flower.scrubbing import PublicError, complain, reply, scrubbed
from fedtail.engines.flower.store import StateLost, Store, open_store
from fedtail.engines.runtime import Clock, Runtime, Withheld, numerics
from fedtail.forms import Form, defect
from fedtail.protocol import Payload, Task, Update
from fedtail.reduce import union, within_frames
from fedtail.sums import Frames
from fedtail.totals import Sums
from fedtail.version import __version__

Notes = dict[str, Any]


def answer_message(
    message: Message,
    context: Context,
    runtime: Callable[[Notes], Runtime],
    store: Store | None = None,
    samples: Callable[[], int] | None = None,
) -> Message:
    """Answer one message of the server; the parameters are those of `answer_content`."""
    answer = reply(
        lambda: answer_content(unsealed(message.content), context, runtime, store, samples)
    )
    return Message(sealed(answer), reply_to=message)


def answer_content(
    content: Content,
    context: Context,
    runtime: Callable[[Notes], Runtime],
    store: Store | None = None,
    samples: Callable[[], int] | None = None,
) -> Content:
    """Return the answer to the content of one message.

    Parameters
    ----------
    content
        What the server sent.
    context
        What Flower gives a function of a client app.
    runtime
        Makes the place where tasks are done, from the notes of the message.
    store
        Where states are kept; by default as `open_store` says.
    samples
        Counts the local samples, where the server does not know how many there are, and may.
    """
    payloads, notes = from_content(content)
    demands = Demands.of(context.node_config)
    if notes["kind"] == "hello":
        secret = demands.private or demands.secure or notes.get("private")
        told = {} if samples is None or secret else {"samples": samples()}
        return to_content([], {**introduction(context), **told})
    # A run that cannot be resumed has no name of its own, and takes Flower's number.
    name = str(notes["run"] or context.run_id)
    kept = open_store(context, name) if store is None else store
    side = side_told(notes, lambda: node_member(context.node_config, kept))
    place = replace(runtime(notes), client_side=side)
    tasks = MessageTasks(place, kept, payloads, demands)
    with numerics(notes["threads"]):
        frames = Frames.read(notes["frames"]) if "frames" in notes else None
        return to_content(*tasks.work(notes["jobs"], frames))


def introduction(context: Context) -> Notes:
    """Say which partition this node holds, and with which versions it computes."""
    partition = context.node_config.get("partition-id")
    if not isinstance(partition, int) or partition < 0:
        raise PublicError(
            "has no partition-id: start its SuperNode with --node-config 'partition-id=0', 1, ..."
        )
    return {
        "kind": "hello",
        "partition": partition,
        "versions": {"fedtail": __version__, "torch": torch.__version__},
    }


@dataclass
class MessageTasks:
    """The tasks of one message, done one after the other."""

    runtime: Runtime
    store: Store
    payloads: list[Payload]
    demands: Demands

    def work(self, jobs: list[Notes], frames: Frames | None) -> tuple[list[Payload], Notes]:
        """Do all jobs; a client's new state is kept before its answer leaves.

        With frames to do it in, answers are checked and added up here.
        """
        began = time.perf_counter()
        forms = {(job["action"], job["payload"]): self._form(job) for job in jobs if frames}
        total = None if frames is None else Sums(union(list(forms.values())), frames)
        done = [self._one(job, forms, total) for job in jobs]
        answers = [payload for payload, _ in done if payload is not None]
        if total is not None:
            answers = [total.payload()]
        outcomes = [outcome for _, outcome in done]
        return answers, {
            "kind": "done",
            "outcomes": outcomes,
            "seconds": time.perf_counter() - began,
        }

    def _form(self, job: Notes) -> Form:
        return self.runtime.form(Task(0, job["action"], self.payloads[job["payload"]]))

    def _one(
        self, job: Notes, forms: Mapping[tuple[str, int], Form], total: Sums | None
    ) -> tuple[Payload | None, Notes]:
        client, since = int(job["client"]), int(job["since"])
        try:
            state = dict(self.store.load(client, since))
            task = Task(client, job["action"], self.payloads[job["payload"]])
            clock = Clock(*job["clock"])
            self.demands.check(self.runtime, task, clock)
            answer = self.runtime.perform(task, state, clock)
            if total is not None:
                form = within_frames(forms[job["action"], job["payload"]], total.frames)
                reason = defect(answer, form, self.runtime.federation.size(client))
                if reason:
                    return None, {"reason": reason, "refused": True}
            # An empty state is kept only where it replaces one: the client has forgotten it.
            side = self.runtime.client_side
            aside = side is not None and task.action in side.actions
            version = job["version"] if (state or since) and not aside else 0
            if version:
                self.store.save(client, version, state, job["keep"])
        except StateLost as error:
            return None, {"reason": str(error), "lost": True}
        except Withheld as error:
            return None, {"reason": str(error), "refused": True}
        except Exception as error:  # a client may fail in any way, and the round goes on
            complain(error)
            return None, {"reason": scrubbed(error)}
        if total is None:
            return answer, {"version": version}
        total.add(Update(client, answer))
        return None, {"version": version, "bytes": answer.nbytes}
