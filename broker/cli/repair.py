"""``timewheel check --repair``: repair the store of a stopped broker, and delete nothing.

The parts are repaired in this order, because each repair relies on the parts before it:

1. the store's id, from the files that carry it;
2. the delivery checkpoint and the manifest of the delay store (`store.spill.upkeep.repair.mended_section`);
3. the CommitLog (`store.log.log_repair`), at least up to the position that the checkpoint calls durable;
4. journal and runs of the delay store (`store.spill.upkeep.repair`);
5. ConsumeQueues and progress file, if the CommitLog was changed, or if a ConsumeQueue file does not have the configured
size and no file tells which size is right: they are put aside, and the next start derives them again;
6. the tables under ``config``: an unreadable or missing table is replaced by the version before (``.bak``).

Bytes that are removed or overwritten are saved under ``timewheel/aside/repair-NNNN`` first (`store.disk.aside`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.tables.groups import SubscriptionGroups
from broker.tables.json_files import JsonFile
from broker.tables.offsets import ConsumerOffsets
from broker.tables.request_modes import RequestModes
from broker.tables.topics import Topics
from remoting.layout import CHECKPOINT, MANIFEST
from remoting.layout.table import Table
from store.derived.consume_queues import ConsumeQueues
from store.derived.known_places import KnownPlaces
from store.disk.aside import AsideDir
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.disk.files import Files
from store.disk.identity import FORMAT_VERSION, identity_text, store_identity
from store.disk.kept_file import KeptFile
from store.levels.delay_offsets import DelayOffsets
from store.log.log_repair import repair_log
from store.options import StoreOptions
from store.progress import Progress
from store.spill.rows.manifest import Manifest
from store.spill.upkeep.repair import mended_section, repair_spill

__all__ = ["repair_store"]

_DELAY = "delay"
_DAMAGE = (StoreCorruptError, StoreFormatError)


def repair_store(config: BrokerConfig) -> list[str]:
    """Repair the store of a configuration. Returns a sentence for each repair; an empty list if nothing was wrong.

    Raises StoreLockedError if a broker runs on the store, StoreError if the store cannot be repaired.
    """
    files = Files()
    release = files.lock(config.store_dir / "lock")
    try:
        aside = AsideDir(files, config.store_dir)
        try:
            _Repair(files, config, aside).run()
        finally:
            aside.finish()
        return aside.report
    finally:
        release()


class _Repair:
    """One repair of one store."""

    def __init__(self, files: Files, config: BrokerConfig, aside: AsideDir) -> None:
        self.files = files
        self.config = config
        self.aside = aside
        self.root = config.store_dir
        self.mine = config.store_dir / "timewheel"
        self.options = StoreOptions.from_config(config.values)

    def run(self) -> None:
        """Repair all parts."""
        if self.files.exists(self.mine):
            store_id = self._identity()
            self._messages(store_id)
        else:
            self._log(0)
        self._queues()
        self._tables()

    # ------------------------------------------------------------------------------------------ identity

    def _identity(self) -> bytes:
        path = self.mine / "store"
        votes: Counter[bytes] = Counter()
        own = b""
        if self.files.exists(path):
            try:
                own = store_identity(self.files, path)
                votes[own] += 1
            except _DAMAGE as error:
                self.aside.say(f"{error}")
        delay = self.mine / _DELAY
        for other, table in (
            (self.mine / "checkpoint", CHECKPOINT),
            (delay / "manifest", MANIFEST),
            (delay / "manifest.copy", MANIFEST),
        ):
            store_id = self._id_in(other, table)
            if store_id:
                votes[store_id] += 1
        if not votes:
            raise StoreCorruptError(f"{path} cannot be read, and no other file says which store this is: bring it back")
        chosen = votes.most_common(1)[0][0]
        if chosen != own:
            kept = f", the old file is {self.aside.move(path)}" if self.files.exists(path) else ""
            self.files.replace_file(path, identity_text(chosen))
            self.aside.say(f"{path}: written again, id {chosen.hex()}, format {FORMAT_VERSION}{kept}")
        return chosen

    def _id_in(self, path: Path, table: Table) -> bytes:
        if not self.files.exists(path):
            return b""
        data = self.files.read_file(path)
        place = table.field("store_id")
        store_id = data[place.at : place.at + place.size]
        try:
            if len(store_id) != place.size:
                return b""
            if table is MANIFEST:
                Manifest.decode(data, store_id, path)
            else:
                DeliveryCheckpoint.open(self.files, path, store_id)
        except _DAMAGE:
            return b""
        return store_id

    # ------------------------------------------------------------------------------------------ messages

    def _messages(self, store_id: bytes) -> None:
        path = self.mine / "checkpoint"
        try:
            checkpoint = DeliveryCheckpoint.open(self.files, path, store_id)
        except _DAMAGE as error:
            self.aside.say(f"{error}: moved to {self.aside.move(path)}")
            checkpoint = DeliveryCheckpoint(self.files, path, store_id)
        durable = max((checkpoint.position_of(name) for name in checkpoint.sections), default=checkpoint.position)
        try:
            progress = Progress.read(self.files, self.mine / "progress")
        except StoreFormatError:
            progress = None
        if progress is not None:
            durable = max(durable, progress.position)
        begin = self._log(durable)
        section = checkpoint.sections.get(_DELAY)
        mended = mended_section(self.files, self.mine / _DELAY, store_id, section, self.aside)
        if mended is not None and mended != section:
            if self.files.exists(path):
                self.aside.copy(path)
            checkpoint.replace_section(_DELAY, mended, begin if section is None else checkpoint.position_of(_DELAY))
            self.aside.say(f"{path}: written again")
        repair_spill(self.files, self.mine / _DELAY, store_id, mended, self.aside)

    def _log(self, durable: int) -> int:
        """Repair the CommitLog; return the position where it begins."""
        options = self.options
        directory = Path(options.commit_log_path) if options.commit_log_path else self.root / "commitlog"
        known = KnownPlaces(self.files, self.root / "consumequeue")
        _, changed = repair_log(
            self.files, directory, options.commit_log_segment_bytes, durable, self.aside, known.is_inside
        )
        if changed:
            self._derive_again()
        names = [int(name) for name in self.files.listdir(directory) if name.isdigit()]
        return min(names, default=0)

    # ------------------------------------------------------------------------------------------ what is derived

    def _derive_again(self) -> None:
        for derived in (self.root / "consumequeue", self.mine / "progress"):
            if self.files.exists(derived):
                self.aside.say(f"{derived} is derived from the CommitLog again; moved to {self.aside.move(derived)}")

    def _queues(self) -> None:
        """Put ConsumeQueues aside if a start would refuse a file for its size, and the right size is not known."""
        try:
            progress = Progress.read(self.files, self.mine / "progress")
        except StoreFormatError:
            return  # written by a newer version, whose start must say what to do
        if progress is not None and progress.file_bytes:
            return
        queues = ConsumeQueues(self.files, self.root / "consumequeue", self.options.consume_queue_segment_bytes)
        try:
            for queue in queues.on_disk():
                queue.segments()
        except StoreFormatError as error:
            self.aside.say(f"{error}")
            self._derive_again()

    # ------------------------------------------------------------------------------------------ tables

    def _tables(self) -> None:
        folder = self.root / "config"

        def now() -> int:
            return 0

        loads: dict[str, Callable[[Path], object]] = {
            "topics.json": lambda path: Topics(self.files, path, now).load(),
            "subscriptionGroup.json": lambda path: SubscriptionGroups(self.files, path, now).load(),
            "consumerOffset.json": lambda path: ConsumerOffsets(self.files, path, now).load(),
            "messageRequestMode.json": lambda path: RequestModes(self.files, path).load(),
            "delayOffset.json": lambda path: DelayOffsets(self.files, path),
        }
        for name, load in loads.items():
            table = JsonFile(self.files, folder / name)
            for _ in range(2):
                try:
                    load(table.path)
                    break
                except StoreCorruptError as error:
                    self._next_version(table, error)
            if name == "delayOffset.json":
                self._put_previous(DelayOffsets(self.files, table.path).file)
            else:
                table.load()
                self._put_previous(table)

    def _put_previous(self, file: KeptFile) -> None:
        """Put the version before in the place of a table, if a start would read that one."""
        if file.is_previous:
            path = file.path
            moved = f", which is moved to {self.aside.move(path)}" if self.files.exists(path) else ", which is missing"
            self.files.rename(file.bak, path)
            self.files.sync_dir(path.parent)
            self.aside.say(f"{path}{moved}: the version before is in its place")

    def _next_version(self, file: KeptFile, error: StoreError) -> None:
        """Put a table aside that no start accepts, and the version before it in its place."""
        path, before = file.path, file.bak
        if self.files.exists(path):
            self.aside.say(f"{error}: moved to {self.aside.move(path)}")
            if self.files.exists(before):
                self.files.rename(before, path)
                self.files.sync_dir(path.parent)
        elif self.files.exists(before):
            self.aside.say(f"{error}: moved to {self.aside.move(before)}")
