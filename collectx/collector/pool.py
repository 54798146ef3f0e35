"""The workers of a collector, with a record for each: they start, become ready, answer requests, fail, and are replaced
or dropped.

    STARTING --replies to its first requests--> READY        STARTING, READY --dropped--> DROPPED

In a run that waits for all workers, a worker counts as ready when its process is started, and gets no first requests.
In a run that begins with some workers (`collector.min_workers`), a worker gets first requests, one after the other, and
counts as ready when it has replied to all of them, which shows that its process runs. In such a run, a replacement gets
a first request too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from collectx.collector.worker_record import (
    FailureAction,
    FailurePolicy,
    Pending,
    Setting,
    Settings,
    WorkerRecord,
    WorkerState,
)
from collectx.errors import set_worker, text_of
from collectx.place.launcher import Entry, Launcher
from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import Departure, Joined, Reply, Request, Reset, Transport
from collectx.transport.network.handshake import Endpoint
from collectx.worker.spec import INCARNATIONS_PER_WORKER, ProcessHistory, ProcessSpec


class Channel(NamedTuple):
    """The transport between the trainer and the workers, and how a process gets its other end.

    Attributes:
        entry: `entry(spec)` returns what a worker's process calls.
        server_entry: returns what the process of the inference server calls; None without a server.
        endpoint: where the trainer listens; None without a network.
    """

    transport: Transport
    entry: Callable[[ProcessSpec], Entry]
    server_entry: Callable[[ProcessSpec], Entry] | None = None
    endpoint: Endpoint | None = None


class WorkerPool:
    """The workers of a collector, by index. If there is an inference server, its index follows the last worker's.

    Args:
        launcher: starts the processes of the workers.
        make_spec: `make_spec(index, history, is_server)` returns the spec of a process: of a worker, or of the
            inference server.
        events: called as `events(name, **fields)` when a worker has joined, failed, or been replaced.
        min_workers: while workers are starting, a batch waits until this number of workers is ready.
        histories: the histories of the workers' first processes, by index; without an entry, the worker is new.
        first_requests: returns the first requests to a worker, at least one, for its index. None: the run waits for all
            workers.
        seed: the run's seed, with which the envs of a worker that gets settings after its start are reset.

    Attributes:
        records: the records of all workers that were ever started, by index, and of the inference server.
        server: the record of the inference server; None without one.
        num_awaited: number of missing replies to the last `request`.
        lost: the errors of the workers that were lost before they replied to the last `request`, and that were replaced
            or dropped.
    """

    def __init__(
        self,
        launcher: Launcher,
        channel: Channel,
        make_spec: Callable[[int, ProcessHistory, bool], ProcessSpec],
        schedule: Schedule,
        failure_policy: FailurePolicy,
        events: Callable[..., None],
        *,
        num_workers: int,
        min_workers: int,
        histories: Mapping[int, ProcessHistory] = MappingProxyType({}),
        first_requests: Callable[[int], Sequence[Request]] | None = None,
        seed: int = 0,
        normalizers: Sequence[str] = (),
    ):
        self.settings = Settings()
        self._seed = seed
        self._normalizers = normalizers
        self.records: list[WorkerRecord] = []
        self.server = WorkerRecord(num_workers, is_server=True) if channel.server_entry is not None else None
        self.num_ready = self.num_starting = self.num_awaited = 0
        self._launcher = launcher
        self._channel = channel
        self._transport = channel.transport
        self._make_spec = make_spec
        self._schedule = schedule
        self._failure_policy = failure_policy
        self._events = events
        self._num_workers = num_workers
        self._min_workers = min_workers
        self._histories = histories
        self._first_requests = first_requests
        self.lost: dict[int, Exception] = {}

    def start_all(self) -> None:
        """Starts the workers with which the run begins. Does not wait for them."""
        # Registers all workers before the address is announced: SLURM may already have started them.
        for _ in range(self._num_workers):
            self._expect_next()
        if self._channel.endpoint is not None:
            self._launcher.announce(self._channel.endpoint)
        for worker in self.records:
            self._start_first(worker)
        if self.server is not None:
            self.records.append(self.server)
            self._launcher.names[self.server.index] = self.server.name
            self._expect(self.server)
            self._start(self.server)
            self._set_state(self.server, WorkerState.SERVING)

    def add(self) -> None:
        """Starts one more worker. It makes the same envs as one of the first workers, with incarnations that no other
        worker reaches, so seeds and trajectory ids differ. Only in a run that waits for all workers."""
        worker = self._expect_next()
        try:
            self._start_first(worker)
        except BaseException:
            self._set_state(worker, WorkerState.DROPPED)
            self.records.pop()
            raise
        self._events("worker_added", worker=worker.index, num_workers=self.num_alive)
        self._schedule.joined(worker.index)

    def _expect_next(self) -> WorkerRecord:
        """Makes the record of the next worker, with the lowest unused index."""
        index = len(self.records)
        new = ProcessHistory(index // self._num_workers * INCARNATIONS_PER_WORKER)
        worker = WorkerRecord(index, self._histories.get(index, new))
        self.records.append(worker)
        self._expect(worker)
        return worker

    def _expect(self, worker: WorkerRecord) -> None:
        """Lets a process of the worker's current incarnation connect."""
        worker.spec = self._make_spec(worker.index, worker.history, worker.is_server)
        self._transport.expect(worker.index, worker.spec.to_json)

    def _start_first(self, worker: WorkerRecord) -> None:
        self._start(worker)
        if self._first_requests is None:
            self._set_state(worker, WorkerState.READY)
            self.send_settings(worker)
        else:
            self._wait_for(worker, self._first_requests(worker.index))

    def _start(self, worker: WorkerRecord) -> None:
        entry = self._channel.server_entry if worker.is_server else self._channel.entry
        assert entry is not None
        num_replaced = worker.history.num_replaced
        worker.handle = self._launcher.start(worker.index, entry(worker.spec), num_replaced, worker.handle)
        if worker.handle is not None:
            self._transport.attach(worker.index, worker.handle)
        worker.has_replied, worker.settings_version = False, 0

    def _wait_for(self, worker: WorkerRecord, first_requests: Sequence[Request]) -> None:
        self._set_state(worker, WorkerState.STARTING)
        worker.first_requests = first_requests
        worker.saved = next((request.arguments[0] for request in first_requests if request.name == "load"), None)
        worker.new_episodes = None
        self._transport.send_request(worker.index, first_requests[0])

    def _set_state(self, worker: WorkerRecord, state: WorkerState) -> None:
        self.num_ready += (state is WorkerState.READY) - (worker.state is WorkerState.READY)
        self.num_starting += (state is WorkerState.STARTING) - (worker.state is WorkerState.STARTING)
        worker.state = state

    @property
    def ready(self) -> set[int]:
        """The workers that take part in batches."""
        return {worker.index for worker in self.records if worker.state is WorkerState.READY}

    @property
    def starting(self) -> set[int]:
        """The workers that have first requests to reply to."""
        return {worker.index for worker in self.records if worker.state is WorkerState.STARTING}

    @property
    def askable(self) -> set[int]:
        """The workers that take part in batches, and the inference server."""
        return self.ready if self.server is None else {*self.ready, self.server.index}

    @property
    def not_replied(self) -> set[int]:
        """Those of `askable` whose newest process has not replied to any request: it may still be making its envs or
        its policy."""
        return {index for index in self.askable if not self.records[index].has_replied}

    @property
    def num_alive(self) -> int:
        """Number of workers that are ready or starting."""
        return self.num_ready + self.num_starting

    @property
    def num_started(self) -> int:
        """Number of workers that were started, also of lost ones."""
        return len(self.records) - (self.server is not None)

    @property
    def ready_of_started(self) -> tuple[int, int] | None:
        """Number of ready workers, and number of started ones; None if all are ready."""
        return None if self.num_ready == self.num_started else (self.num_ready, self.num_started)

    @property
    def stepping_of_started(self) -> tuple[int, int] | None:
        """Number of workers that have stepped their envs, and number of started ones; None for workers in the trainer's
        process. Any thread may read it."""
        num_stepping = self._transport.num_stepping
        return None if num_stepping is None else (num_stepping, self.num_started)

    @property
    def must_wait_for_workers(self) -> bool:
        """Whether the next batch must wait for workers that are starting."""
        return self.num_starting > 0 and self.num_ready < self._min_workers

    def handle_joined(self, joined: Joined) -> None:
        """Logs that a worker has connected."""
        self._events("worker_joined", worker=joined.worker, **joined.info)

    def handle_first_reply(self, reply: Reply, num_batches: int) -> None:
        """Handles a starting worker's reply: sends the next request, or after the last one makes the worker ready.
        Raises the reply's error. `num_batches` is the number of batches that the run has delivered."""
        if reply.error is not None:
            # Ends the run whatever `on_worker_failure` is, because the worker is alive: the user's code that loads a
            # saved state raised this. Envs that cannot be restored begin new episodes without an error.
            set_worker(reply.error, reply.worker)
            raise reply.error
        worker = self.records[reply.worker]
        if worker.first_requests[0].name == "load":
            worker.new_episodes = reply.value
        worker.has_replied, worker.first_requests = True, worker.first_requests[1:]
        if worker.first_requests:
            self._transport.send_request(worker.index, worker.first_requests[0])
            return
        is_restored = worker.saved is not None and worker.new_episodes is None
        if is_restored or (worker.reset is not None and worker.reset.seed is None):
            worker.reset = None  # the envs are restored, or new
        if not is_restored:
            worker.settings_version = 0
        self.send_settings(worker, is_restored)
        worker.saved = None
        self._set_state(worker, WorkerState.READY)
        self._schedule.joined(worker.index)
        counts = {"num_workers": self.num_ready, "of": len(self.records), "batches": num_batches}
        self._events("worker_ready", worker=worker.index, **counts, new_episodes=worker.new_episodes)

    def handle_departure(self, departure: Departure, is_final: bool) -> Iterable[Grant]:
        """Handles the end of a worker: replaces or drops it. Returns the slots that its replacement may fill.
        `is_final` says whether to raise the worker's error in any case, because the collector was interrupted. Raises
        the worker's error if it ends the run."""
        worker, error = self.records[departure.worker], departure.error
        if worker is not self.server:
            set_worker(error, worker.index)
        died_of_settings = worker.has_replied and any(each.is_of_start for each in worker.pending)
        is_awaited = any(each.is_awaited for each in worker.pending)
        self.num_awaited -= is_awaited
        worker.num_granted = 0
        worker.pending.clear()
        self._events("worker_failed", worker=worker.index, type=type(error).__name__, message=text_of(error))
        if is_final or worker is self.server:
            raise error
        num_restarts = sum(record.history.num_restarts for record in self.records)
        action = self._failure_policy.decide(worker, error, self.num_alive - 1, num_restarts)
        if action is FailureAction.RESTART and died_of_settings:
            names = " and ".join(map(str, self.settings.in_force))
            error.add_note(
                f"{worker.name} was not restarted again: its process had made its envs, and ended while it applied the "
                f"settings that every new process gets: {names}. Leave out the one that ends it."
            )
            raise error
        if action is FailureAction.END_RUN:
            raise error
        if is_awaited:
            self.lost[worker.index] = error
        if action is FailureAction.DROP:
            self._leave(worker)
            self._set_state(worker, WorkerState.DROPPED)
            self.tell_server("drop", worker.index)
            self._events("worker_dropped", worker=worker.index, num_workers=self.num_alive)
            return ()
        history = worker.history
        worker.history = history.after_requeue() if action is FailureAction.REQUEUE else history.after_restart()
        self._expect(worker)
        self._start(worker)
        self._events(
            "worker_restarted",
            worker=worker.index,
            incarnation=worker.history.incarnation,
            restarts=worker.history.num_replaced,
            after=type(error).__name__,
            **({"normalizers": self._normalizers} if self._normalizers else {}),
        )
        if self._first_requests is None:
            self.send_settings(worker)
            return self._schedule.replaced(worker.index)
        self._leave(worker)
        is_lost = worker.saved is not None
        self._wait_for(worker, [Request("ready")])
        if is_lost:
            worker.new_episodes = "its process ended before it had restored them"
        return ()

    def send_settings(self, worker: WorkerRecord, is_restored: bool = False) -> None:
        """Sends a worker the settings that its process lacks, before its next granted slot. Its envs are then reset,
        unless they were restored. Does not wait for the reply."""
        settings = self.settings
        if changes := settings.since(worker.settings_version, worker.index):
            if not worker.has_replied:
                # If the process ends before this reply, making the envs ended it; after it, a setting did.
                self._send(worker, Request("ready"), Pending(is_of_start=True))
            self._send(worker, Request("change", (changes,)), Pending(is_of_start=True))
            if not is_restored:
                worker.reset = worker.reset or Reset(self._seed)
        worker.settings_version = settings.version

    def report_setting(self, setting: Setting, num_batches: int) -> None:
        """Logs that the workers have applied a setting. `num_batches` is the number of batches that the run has
        delivered."""
        self._events(
            "setting", kind=setting.kind, of=setting.name, settings_version=setting.version, batches=num_batches
        )

    def _leave(self, worker: WorkerRecord) -> None:
        """Takes a worker that is ready out of the schedule."""
        if worker.state is WorkerState.READY:
            self._schedule.dropped(worker.index)

    def tell_server(self, name: str, *arguments: Any) -> None:
        """Sends a request to the inference server, if there is one. Does not wait for the reply."""
        if self.server is not None:
            self._send(self.server, Request(name, arguments), Pending())

    def _send(self, worker: WorkerRecord, request: Request, pending: Pending) -> None:
        # If arguments cannot be pickled, this raises before a reply counts as missing.
        self._transport.send_request(worker.index, request)
        worker.pending.append(pending)

    def tell_starting(self, name: str, *arguments: Any) -> None:
        """Sends a request to the workers that are starting, before they take part."""
        for worker in self.records:
            if worker.first_requests:
                first, *others = worker.first_requests
                worker.first_requests = [first, Request(name, arguments), *others]

    def restore_starting(self, states: Mapping[int, dict[str, Any]]) -> None:
        """Lets workers that are starting load these saved states, by worker, before they take part."""
        for index in self.starting & states.keys():
            worker = self.records[index]
            if worker.saved is not states[index]:
                first, *others = worker.first_requests
                others = [request for request in others if request.name != "load"]
                worker.first_requests = [first, Request("load", (states[index],)), *others]
                worker.saved = states[index]

    def request(self, name: str, arguments: Mapping[int, tuple[Any, ...]], setting: Setting | None = None) -> None:
        """Sends a request to workers. `num_awaited` is 0 when all of them have replied, or have failed (`lost`).

        Args:
            name: a method of `collectx.worker.requests.RequestHandler`.
            arguments: the arguments by worker; workers that do not take part in batches are not asked.
            setting: the newest setting, if the request makes it.
        """
        self.lost = {}
        for worker in self.records:
            worker.reply = None
            for each in worker.pending:
                each.is_awaited = False
        self.num_awaited = 0
        for worker in [self.records[index] for index in sorted(self.askable & arguments.keys())]:
            self._send(worker, Request(name, arguments[worker.index]), Pending(setting, is_awaited=True))
            if setting is not None:
                worker.settings_version = self.settings.version
            self.num_awaited += 1

    def replies(self) -> dict[int, Any]:
        """Returns the results of the last `request`, by worker, without workers that were lost. Raises the first error
        of a method."""
        replies = [worker.reply for worker in self.records if worker.reply is not None]
        for reply in replies:
            if reply.error is not None:
                if self.records[reply.worker] is not self.server:
                    set_worker(reply.error, reply.worker)
                raise reply.error
        return {reply.worker: reply.value for reply in replies}

    def handle_reply(self, reply: Reply) -> None:
        """Records the reply of a ready worker; discards replies to calls that were interrupted. Withdraws a setting
        that the worker refused."""
        worker = self.records[reply.worker]
        worker.has_replied = True
        request = worker.pending.popleft()
        if reply.error is not None and request.is_of_start:
            set_worker(reply.error, worker.index)
            raise reply.error
        if reply.error is not None and request.setting is not None:
            self.settings.withdraw(request.setting)
        if request.is_awaited:
            worker.reply = reply
            self.num_awaited -= 1
