"""Envs and a trainer with threads and processes of their own."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import gymnasium

# Importing some libraries, such as JAX, starts threads.
THREADS = ThreadPoolExecutor(1)
THREADS.submit(int).result()


class ThreadedEnv(gymnasium.ObservationWrapper):
    """Observes in a thread. Refuses to be in a process of an AsyncVectorEnv that another start method has made."""

    def __init__(self, env: gymnasium.Env, start_method: str):
        super().__init__(env)
        if multiprocessing.current_process().name.startswith("Worker<AsyncVectorEnv>"):
            assert multiprocessing.get_start_method() == start_method
        self._threads = THREADS if start_method != "fork" else ThreadPoolExecutor(1)

    def observation(self, observation):
        return self._threads.submit(lambda: observation).result(timeout=20)


def double(number: int) -> int:
    return 2 * number


def put_double(queue: multiprocessing.Queue, number: int) -> None:
    queue.put(double(number))


def make_with_processes() -> gymnasium.Env:
    """Starts and ends processes in each way that multiprocessing has, as simulators do."""
    for method in (None, "forkserver", "spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=put_double, args=(queue, 1))
        process.start()
        assert queue.get(timeout=20) == 2
        process.join()
    with multiprocessing.Pool(1) as pool, ProcessPoolExecutor(1) as executor, multiprocessing.Manager() as manager:
        assert pool.apply_async(double, [1]).get(timeout=20) == executor.submit(double, 1).result(timeout=20) == 2
        assert manager.list([1])[0] == 1
    return gymnasium.make("CartPole-v1")


class Nothing:
    """A data set whose rows take a while."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        time.sleep(0.05)
        return index


class Helped:
    """A trainer that needs the processes of a DataLoader or of a Pool for each batch, about two seconds."""

    def __init__(self, policy, start_method: str, pool: bool = False):
        self._context, self._has_pool = multiprocessing.get_context(start_method), pool
        self.num_rows = 0

    def train(self, collection):
        from torch.utils.data import DataLoader

        for _ in collection:
            if self._has_pool:
                with self._context.Pool(2) as pool:
                    self.num_rows += len(pool.map(time.sleep, [0.4] * 10))
            else:
                for _ in DataLoader(Nothing(), num_workers=2, multiprocessing_context=self._context):
                    self.num_rows += 1

    def state_dict(self):
        return {"num_rows": self.num_rows}

    def load_state_dict(self, state):
        self.num_rows = state["num_rows"]
