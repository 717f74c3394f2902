from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork
from gateway.core.session.work_log import WorkLog


def _change(position: int, diff: str) -> FileChange:
    return FileChange(position=position, path="f", kind="changed", additions=1, deletions=0, diff=diff)


def test_old_diffs_are_left_out_first_and_their_numbers_stay() -> None:
    log = WorkLog()
    for position in range(30):
        log.add_change(_change(position, "x" * 60_000))
    changes = log.work(()).changes
    assert [change.position for change in changes if not change.diff] == list(range(13))
    assert all(change.additions == 1 for change in changes)
    assert log.weight_bytes < 2 << 20


def test_a_very_long_diff_is_left_out() -> None:
    log = WorkLog()
    log.add_change(_change(0, "x" * 70_000))
    assert log.work(()).changes == (_change(0, ""),)


def test_what_is_beyond_the_bounds_is_counted() -> None:
    log = WorkLog()
    for position in range(5_010):
        log.add_change(_change(position, ""))
        log.add_command(CommandRun(position=position, command="y" * 3_000))
    work = log.work(())
    assert (len(work.changes), work.unlisted_changes) == (5_000, 10)
    assert (len(work.commands), work.unlisted_commands) == (1_000, 4_010)
    assert work.commands[-1].position == 5_009
    assert len(work.commands[0].command) == 2_000


def test_a_log_goes_on_where_a_work_ended() -> None:
    todos = (OpenTodo(text="t"),)
    work = SessionWork(
        changes=(_change(1, "d"),),
        commands=(CommandRun(position=2, command="ls", exit_code=0),),
        todos=todos,
        titles=((0, "Title"),),
        unlisted_changes=3,
        unlisted_commands=4,
    )
    assert WorkLog.restore(work).work(todos) == work
