"""Real engine processes: kept, killed, restarted, ended; their errors keep their class."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from engine_jobs import EngineJob, make_engine_job

from storage.checks import check_store
from storage.errors import StorageError, StoreVersionError
from tasks import messages
from tasks.engine.devices import DeviceGroup
from tasks.engine.errors import EngineVersionError
from tasks.engine_pool import EnginePool
from tasks.engine_process import EngineProcess
from tasks.errors import RunEndedError, WorkerError

LENGTHS = (9, 40, 3, 17, 25, 1) * 4
FIRST, SECOND = DeviceGroup("first", "cpu"), DeviceGroup("second", "cpu")


@pytest.fixture(scope="module")
def job(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> EngineJob:
    return make_engine_job(tmp_path_factory.mktemp("engines") / "store", tiny_model("llama"), LENGTHS, 40)


@pytest.fixture(scope="module")
def engines(job: EngineJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """Two engines, started from a folder whose `tasks` must not be taken for ours."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "__init__.py").write_text("raise ImportError('the tasks of the working directory')")
    before = Path.cwd()
    os.chdir(folder)
    found = [EngineProcess(job.start, group, folder / "logs" / f"{group.name}.log") for group in (FIRST, SECOND)]
    yield found
    os.chdir(before)
    for engine in found:
        engine.kill()


def pid_of(engine: EngineProcess) -> int:
    assert engine._process is not None
    return engine._process.pid


def ignore(_: messages.Message) -> None:
    """Listen to nothing."""


def in_a_thread_that_ends(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


class Killer:
    """Kills an engine when it has committed so many samples; keeps what was told."""

    def __init__(self, engine: EngineProcess, after: int) -> None:
        self.engine, self.after = engine, after
        self.committed: list[str] = []

    def __call__(self, message: messages.Message) -> None:
        if isinstance(message, messages.Committed):
            self.committed.append(message.sample_hash)
            if len(self.committed) == self.after:
                os.kill(pid_of(self.engine), signal.SIGKILL)


# The tests of this class follow each other on one pair of engines, whose start is most of their time.
class TestTwoEngines:
    def test_a_killed_engine_is_named_with_its_signal_and_its_log(
        self, engines: list[EngineProcess], job: EngineJob
    ) -> None:
        engine = engines[0]
        killer = Killer(engine, after=2)
        with pytest.raises(WorkerError) as error:
            engine.run_unit(list(range(12)), killer)
        assert str(error.value) == (f"engine process on first was killed by SIGKILL; its log is {engine.log_path}")
        assert engine.log_path.exists()
        assert 2 <= len(job.store) < 12
        assert set(killer.committed) <= set(job.store)
        assert not check_store(job.store.path, job.spec.digest()).findings

    def test_it_starts_again_and_does_what_is_left(self, engines: list[EngineProcess], job: EngineJob) -> None:
        there = set(job.store)
        heard: list[messages.Message] = []
        in_a_thread_that_ends(lambda: engines[0].run_unit(list(range(12)), heard.append))
        told = {message.sample_hash: message.existed for message in heard if isinstance(message, messages.Committed)}
        assert told == {name: name in there for name in job.tokens.sample_hashes[:12]}

    def test_two_engines_at_once_do_every_sample_once(self, engines: list[EngineProcess], job: EngineJob) -> None:
        """They are given the same samples: who comes first stores it, the other says that it is there."""
        pid = pid_of(engines[0])
        heard: list[messages.Message] = []
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda engine: engine.run_unit(list(range(24)), heard.append), engines))
        assert job.missing() == []
        committed = [message for message in heard if isinstance(message, messages.Committed)]
        assert len(committed) == 48
        assert sum(not message.existed for message in committed) == 12
        assert pid_of(engines[0]) == pid, "the engine lives on when the thread that first called it has ended"

    def test_a_unit_begins_once_the_one_before_is_computed_and_each_hears_its_own_end(
        self, engines: list[EngineProcess]
    ) -> None:
        heard: list[messages.Message] = []
        with ThreadPoolExecutor(3) as pool:
            units = []
            for samples in ([0, 1], [2, 3, 4], [5]):
                computed = threading.Event()
                units.append(pool.submit(engines[0].run_unit, samples, heard.append, computed.set))
                assert computed.wait(60)
            done = [unit.result() for unit in units]
        numbers = [unit.number for unit in done]
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert len([message for message in heard if isinstance(message, messages.Committed)]) == 6

    def test_an_engine_sees_no_gpu_and_no_terminal(self, engines: list[EngineProcess]) -> None:
        child = psutil.Process(pid_of(engines[0]))
        environment = child.environ()
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert os.getsid(child.pid) == child.pid, "Ctrl-C goes to the parent alone"
        assert {Path(f"/proc/{child.pid}/fd/{fd}").readlink() for fd in (1, 2)} == {engines[0].log_path}

    def test_closing_ends_the_process_and_opens_the_way_for_another(self, engines: list[EngineProcess]) -> None:
        process = engines[1]._process
        assert process is not None
        engines[1].close()
        assert process.returncode == 0
        engines[1].close()
        child = psutil.Process(pid_of(engines[0]))
        engines[0].kill()
        assert not child.is_running()


@pytest.fixture
def small_job(tmp_path: Path, tiny_model: Callable[[str], Path]) -> EngineJob:
    return make_engine_job(tmp_path / "store", tiny_model("llama"), (3,))


def fail(start: messages.Start, log: Path) -> Exception:
    engine = EngineProcess(start, FIRST, log)
    with pytest.raises(Exception, match=r".") as error:
        engine.run_unit([0], ignore)
    assert engine._process is None
    assert "\n" not in str(error.value)
    return error.value


def test_a_missing_tokens_artifact_is_a_storage_error_here_too(small_job: EngineJob, tmp_path: Path) -> None:
    error = fail(replace(small_job.start, tokens_digest="0" * 64), tmp_path / "log")
    assert type(error) is StorageError
    assert f"tokens artifact {'0' * 64} is not in {small_job.start.store}" in str(error)


def test_a_store_of_another_version_is_that_error_here_too(small_job: EngineJob, tmp_path: Path) -> None:
    Path(small_job.start.store, "aerie.json").write_text('{"format":"aerie","format_version":9}')
    error = fail(small_job.start, tmp_path / "log")
    assert type(error) is StoreVersionError
    assert "format version 9" in str(error)


def test_the_wrong_sglang_is_an_engine_error_here_too(
    small_job: EngineJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "site" / "sglang-0.4.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Name: sglang\nVersion: 0.4.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    error = fail(small_job.start, tmp_path / "log")
    assert type(error) is EngineVersionError
    assert "sglang 0.4.0 is installed" in str(error)


def test_a_worker_that_ends_by_itself_is_named_with_its_exit_code(small_job: EngineJob, tmp_path: Path) -> None:
    error = fail(replace(small_job.start, parent_pid=-1), tmp_path / "logs" / "first.log")
    assert type(error) is WorkerError
    assert str(error) == f"engine process on first ended with exit code 1; its log is {tmp_path}/logs/first.log"


def test_an_error_of_the_listener_is_its_own_and_ends_the_engine(small_job: EngineJob, tmp_path: Path) -> None:
    engine = EngineProcess(small_job.start, FIRST, tmp_path / "log")

    def break_down(_: messages.Message) -> None:
        raise BrokenPipeError("the terminal has gone")

    with pytest.raises(BrokenPipeError, match="the terminal has gone"):
        engine.run_unit([0], break_down)
    assert engine._process is None


class TestPool:
    # No engine is started here: they start with their first unit.
    def test_an_engine_is_leased_to_one_at_a_time(self, small_job: EngineJob, tmp_path: Path) -> None:
        with EnginePool(small_job.start, [FIRST, SECOND], tmp_path) as pool:
            with pool.lease(ignore) as one, pool.lease(ignore) as other:
                assert {one.engine.group.name, other.engine.group.name} == {"first", "second"}
                waiting = threading.Thread(target=lambda: pool.lease(ignore).__enter__())
                waiting.start()
                waiting.join(0.2)
                assert waiting.is_alive()
            waiting.join(5)
            assert not waiting.is_alive()

    def test_a_run_that_is_over_starts_no_engine(self, small_job: EngineJob, tmp_path: Path) -> None:
        with EnginePool(small_job.start, [FIRST], tmp_path) as pool:
            pass
        with pytest.raises(RunEndedError), pool.lease(ignore):
            pass

    def test_no_engine_starts_for_a_unit_that_was_leased_before_the_run_ended(
        self, small_job: EngineJob, tmp_path: Path
    ) -> None:
        with EnginePool(small_job.start, [FIRST], tmp_path) as pool:
            lease = pool.lease(ignore)
            engine = lease.__enter__().engine
        with pytest.raises(RunEndedError):
            engine.run_unit([0], ignore)
        assert engine._process is None

    def test_an_engine_can_be_ended_by_two_threads_at_once(self, small_job: EngineJob, tmp_path: Path) -> None:
        """The run ends while the thread of a unit finds its engine dead."""
        engine = EngineProcess(small_job.start, FIRST, tmp_path / "log")
        engine._spawn()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: engine.kill(), range(8)))
        assert engine._process is None

    def test_an_engine_that_the_end_of_the_run_ends_is_not_called_lost(
        self, small_job: EngineJob, tmp_path: Path
    ) -> None:
        heard: list[messages.Message] = []
        engine = EngineProcess(small_job.start, FIRST, tmp_path / "log")

        def end_the_run(message: messages.Message) -> None:
            heard.append(message)
            engine.retire()
            engine.kill()

        with pytest.raises(WorkerError):
            engine.run_unit([0], end_the_run)
        assert [m for m in heard if isinstance(m, messages.Phase)]
        assert not [m for m in heard if isinstance(m, messages.Phase) and "lost" in m.name]

    def test_no_engine_outlives_a_run_that_fails(self, small_job: EngineJob, tmp_path: Path) -> None:
        heard: list[messages.Message] = []

        def stop(message: messages.Message) -> None:
            heard.append(message)
            raise KeyboardInterrupt

        pool = EnginePool(small_job.start, [FIRST], tmp_path)
        with pytest.raises(KeyboardInterrupt), pool, pool.lease(ignore) as lease:
            lease.engine.run_unit([0], stop)
        assert heard == [messages.Phase("load model", "first")]
        assert not [child for child in psutil.Process().children() if "tasks.worker" in child.cmdline()]
