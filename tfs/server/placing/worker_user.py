"""The user that process interpreters run as: ``--worker_user`` as numbers."""

from __future__ import annotations

import grp
import pwd

from tfs.core.errors import InvalidArgument


def user_of(text: str) -> tuple[int, int]:
    """Returns user and group of "name", "name:group", "uid" or "uid:gid".

    Without a group it is the user's own group. A number without an account has none, so
    it gets the group with the same number.

    Raises:
        InvalidArgument: There is no such account.

    """
    user, _, group = text.partition(":")
    try:
        if user.isdigit():
            user_id = int(user)
            group_id = _group_of(user_id)
        else:
            account = pwd.getpwnam(user)
            user_id, group_id = account.pw_uid, account.pw_gid
        if group:
            group_id = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise InvalidArgument(
            f"--worker_user={text}: no such user or group; name an account of this "
            "host, or numbers as uid:gid"
        ) from error
    return user_id, group_id


def _group_of(user_id: int) -> int:
    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return user_id
