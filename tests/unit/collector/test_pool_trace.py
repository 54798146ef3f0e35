"""The pool: what it does, and what it knows, after each event of some runs."""

import pytest

from collectx.collector.pool import Channel, WorkerPool
from collectx.collector.worker_record import FailurePolicy, WorkerRecord
from collectx.errors import JobEnded, WorkerDied, worker_of
from collectx.transport.base import Departure, Joined, Reply, Request, Reset
from collectx.worker.spec import ProcessHistory

READY, LOAD = Request("ready"), Request("load", (7,))
ERRORS = {"DIED": WorkerDied("killed"), "ENDED": JobEnded("preempted"), "WRONG": ValueError("wrong")}
FACTS = ["ready", "starting", "askable", "num_alive", "num_awaited"]
FACTS += ["must_wait_for_workers", "ready_of_started", "stepping_of_started"]
# What is told of a worker where it differs from this.
NEW = {name: value for name, value in vars(WorkerRecord(0)).items() if name not in ("index", "num_frames", "is_server")}
NEW["pending"] = []


class Told:
    """Stands in for launcher, transport and schedule: writes down what it is told. Grants slot 9 to a replacement."""

    num_stepping = 1

    def __init__(self):
        self.lines, self.names = [], {}

    def __getattr__(self, name):
        def told(*arguments):
            self.lines.append(f"    {name}{arguments}")
            match name:
                case "start":
                    return f"process of {arguments[1]}"
                case "replaced":
                    return [(*arguments, 9)]
            return None

        return told


class Spec(str):
    """The spec of a process, as text."""

    to_json = property(str)


def make_spec(index, history, is_server):
    return Spec(f"spec of {'the server' if is_server else history}")


class Story:
    """A pool, and the lines that tell what it does."""

    def __init__(self, mode="restart", first=None, has_server=False, num_workers=2, **options):
        self.told = Told()
        channel = Channel(self.told, str, "server, {}".format if has_server else None, "here")
        policy = FailurePolicy(mode, 2, min_workers=2, max_requeues=1)
        self.pool = WorkerPool(
            self.told,
            channel,
            make_spec,
            self.told,
            policy,
            self.event,
            num_workers=num_workers,
            min_workers=2,
            histories={0: ProcessHistory(restart_count=3), 1: ProcessHistory(4)},
            first_requests=first,
            seed=5,
            **options,
        )
        self.lines, self._known = self.told.lines, {}
        self.step("start_all()")

    def event(self, name, **values):
        self.lines.append(f"    event {name} {values}")

    def departure(self, worker, error, is_final=False):
        return list(self.pool.handle_departure(Departure(worker, error), is_final))

    def first(self, worker, value=None, error=None):
        self.pool.handle_first_reply(Reply(worker, value, error), num_batches=6)

    def reply(self, worker, value=None, error=None):
        self.pool.handle_reply(Reply(worker, value, error))

    def setting(self, *contents):
        self.newest = self.pool.settings.add("call", "go", contents)

    def report(self):
        self.pool.report_setting(self.newest, 8)

    def joined(self, worker):
        self.pool.handle_joined(Joined(worker, {"host": "here", "pid": 1}))

    def loaded(self, worker):
        """Loads a pool's state, which contains all settings."""
        self.pool.records[worker].settings_version = self.pool.settings.version

    def reset(self, worker, seed=None):
        self.pool.records[worker].reset = Reset(seed)

    def step(self, text):
        pool = self.pool
        names = {name: getattr(self, name) for name in dir(self) if not name.startswith("_")}
        names |= {name: getattr(pool, name) for name in ("start_all", "add", "request", "replies", "tell_server")}
        errors = {name: type(error)(*error.args) for name, error in ERRORS.items()}
        self.lines.append(text)
        try:
            result = eval(text, names | errors)
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            result = f"{type(error).__name__} of worker {worker_of(error)} {' '.join(notes)}".rstrip()
        self.lines.append(f"  -> {result}")
        known = {name: getattr(pool, name) for name in FACTS}
        known["not_replied"] = pool.not_replied
        for worker in pool.records:
            facts = vars(worker) | {"pending": [_shown(each) for each in worker.pending]}
            known |= {f"{worker.name}: {name}": facts[name] for name in NEW}
        changed = {
            name: value
            for name, value in known.items()
            if value != self._known.get(name, NEW.get(name.partition(": ")[2], ...))
        }
        self._known |= known
        self.lines += [f"  {name} = {value}" for name, value in changed.items()]


def _shown(request):
    """Returns a request without a reply as words."""
    words = [] if request.setting is None else [f"setting {request.setting.version}"]
    words += ["start"] * request.is_of_start + ["awaited"] * request.is_awaited
    return " ".join(words) or "told"


STORIES = {
    # A run that waits for all workers: they are asked, lost, replaced until there were too many losses, and added.
    "restarts": (
        {"normalizers": ["NormalizeReward"]},
        [
            "joined(1)",
            "request('get', {0: (1,), 1: (2,), 7: (3,)})",
            "reply(0, 'zero')",
            "departure(1, DIED)",
            "replies()",
            "request('get', {0: (), 1: ()})",
            "request('get', {1: ()})",
            "reply(1, 'old')",
            "reply(0, 'old')",
            "reply(1, 'new')",
            "replies()",
            "departure(0, DIED)",
            "departure(1, ENDED)",
            "departure(1, ENDED)",
            "add()",
            "departure(2, DIED, is_final=True)",
        ],
    ),
    # A run that begins with two of three workers, the last of which has a state; others are dropped.
    "drops": (
        {"mode": "drop", "num_workers": 3, "first": lambda worker: [READY, LOAD] if worker == 2 else [READY]},
        [
            "setting('a', 'b')",
            "reset(0)",
            "first(0)",
            "reset(1, 3)",
            "first(1, 'its envs are new')",
            "first(2)",
            "first(2)",
            "reply(1, error=WRONG)",
            "reply(0)",
            "departure(0, ENDED)",
            "first(0)",
            "request('change', {0: ('x',), 1: ('x',), 2: ('x',)}, setting=newest)",
            "departure(2, DIED)",
            "reply(1, [4])",
            "reply(0)",
            "reply(0, [5])",
            "replies()",
            "report()",
            "departure(1, DIED)",
            "tell_server('drop', 1)",
        ],
    ),
    # A state that cannot be loaded into its envs ends the run; one that is loaded only in part begins new episodes.
    "states": (
        {"first": lambda worker: [LOAD]},
        [
            "setting('a')",
            "reset(0)",
            "loaded(0)",
            "first(0)",
            "reset(1)",
            "loaded(1)",
            "first(1, 'a lock')",
            "first(1, None, WRONG)",
        ],
    ),
    # An inference server: asked with the workers, told of dropped ones, never replaced.
    "server": (
        {"mode": "drop", "has_server": True, "num_workers": 3},
        [
            "request('state', {0: (), 1: (), 2: (), 3: ()})",
            "departure(1, DIED)",
            "reply(3, 'generators')",
            "reply(3, 'late')",
            "reply(0)",
            "reply(2)",
            "replies()",
            "request('state', {3: ()})",
            "reply(3, None, WRONG)",
            "replies()",
            "departure(3, DIED)",
        ],
    ),
    "raises": ({"mode": "raise"}, ["request('state', {0: ()})", "departure(0, DIED)", "replies()"]),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_of_workers(name, expected):
    options, steps = STORIES[name]
    story = Story(**options)
    for step in steps:
        story.step(step)
    expected(f"pool-{name}", "\n".join(story.lines))
