"""How the view follows its servers: those that are lost are replaced, those that come get their share.

Every function returns a view of the next epoch, or None if there is nothing to change. A change takes small steps: a
server first joins a piece, and takes part once its primary says that it has a copy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from onecurve.describe.slots import owned_slots
from onecurve.params.view import Piece, Place, ServerAddress, View

_TOLERANCE = 0.02
"""Shares of slots that differ by less are equal."""


def first_view(
    servers: Mapping[str, ServerAddress], copies: int, before: View | None = None, settings: str = ""
) -> View:
    """Divide the slots among servers, which forget all rows. `copies`: of each piece, 1 or 2. `before`: the newest view
    so far, if there is one. `settings`: what they must know of the job."""
    pieces: dict[int, Piece] = {}
    names = [name for name, server in servers.items() if not server.is_leaving]
    for number, name in enumerate(names):
        slots = owned_slots(number, len(names))
        others = [*names[number + 1 :], *names[:number]]
        backups = [other for other in others if servers[other].machine != servers[name].machine]
        backup = backups[0] if copies > 1 and backups else ""
        pieces[slots.start] = Piece(end=slots.stop, primary=name, backup=backup)
    epoch, restarts = (before.epoch, before.restarts) if before is not None else (0, 0)
    return View(
        epoch=epoch + 1,
        pieces=pieces,
        servers=servers,
        restarts=restarts + 1,
        copies=copies,
        settings=settings,
    )


def lost_slots(view: View, gone: str) -> list[range]:
    """The slots that nobody has if this server is gone: it was the only one that had all of their rows."""
    return [
        range(begin, piece.end) for begin, piece in view.pieces.items() if piece.primary == gone and not piece.backup
    ]


def without(view: View, gone: str) -> View | None:
    """A server is gone. The backups of its pieces become primaries. Pieces of which nobody has the rows have no primary
    any more: whoever asks for them must be told."""
    if gone not in view.servers:
        return None
    pieces = {begin: _without(piece, gone) for begin, piece in view.pieces.items()}
    servers = {name: server for name, server in view.servers.items() if name != gone}
    return replace(view, epoch=view.epoch + 1, pieces=pieces, servers=servers)


def _without(piece: Piece, gone: str) -> Piece:
    if piece.primary == gone:
        # Whoever was joining had its copy from the server that is gone: it begins again.
        return Piece(end=piece.end, primary=piece.backup)
    if gone in (piece.backup, piece.joining):
        return Piece(end=piece.end, primary=piece.primary, backup=piece.backup if piece.backup != gone else "")
    return piece


def with_server(view: View, name: str, server: ServerAddress) -> View | None:
    """A server has come, without any rows, or wants to leave."""
    if view.servers.get(name) == server:
        return None
    return replace(view, epoch=view.epoch + 1, servers={**view.servers, name: server})


def taking_part(view: View, begin: int, joined: str) -> View | None:
    """A server has a copy of a piece: it takes the place for which it has joined."""
    piece = view.pieces.get(begin)
    if piece is None or piece.joining != joined:
        return None
    if piece.joins_as == "primary":
        settled = Piece(end=piece.end, primary=joined, backup=piece.backup or piece.primary)
    else:
        settled = Piece(end=piece.end, primary=piece.primary, backup=joined)
    return _changed(view, begin, settled)


def next_move(view: View, copies: int) -> View | None:
    """Have a server join a piece that has too few copies, or of whose servers one has more than its share.

    One after the other: a server that sends a copy has less time for the ranks.
    """
    if any(piece.joining for piece in view.pieces.values()):
        return None
    moves = chain(
        _missing_backups(view, copies), _moves(view, "primary"), _moves(view, "backup"), _backups_that_leave(view)
    )
    return next(moves, None)


def _missing_backups(view: View, copies: int) -> Iterator[View]:
    held = slots_by_server(view, "backup")
    for begin, piece in view.pieces.items():
        if piece.backup or copies < 2 or not piece.primary:
            continue
        others = [name for name in view.servers if _may_take(view, name, piece.primary)]
        if others:
            yield _joining(view, begin, min(others, key=lambda name: held[name]), "backup")


def _moves(view: View, place: Place) -> Iterator[View]:
    """Move slots from servers that have more than their share in this place to those that have less."""
    held = slots_by_server(view, place)
    staying = [name for name, server in view.servers.items() if not server.is_leaving]
    share = sum(held.values()) / max(1, len(staying))
    shares = {name: share if name in staying else 0.0 for name in held}
    by_slots = sorted(held, key=lambda name: held[name])
    for giver in reversed(by_slots):
        for taker in by_slots:
            surplus, lack = held[giver] - shares[giver], shares[taker] - held[taker]
            is_needed = giver not in staying or max(surplus, lack) > _TOLERANCE * share
            if min(surplus, lack) >= 0.5 and is_needed:
                yield from _move(view, place, giver, taker, max(1, round(min(surplus, lack))))
    for giver in (name for name in by_slots if name not in staying and held[name]):
        for taker in staying:  # what nobody lacks is taken as it is, and divided later
            yield from _move(view, place, giver, taker, held[giver])


def _move(view: View, place: Place, giver: str, taker: str, slots: int) -> Iterator[View]:
    """Move a piece of at most so many slots, or split one so that it can be moved."""
    changes_places = {
        begin: place == "primary" and piece.backup == taker
        for begin, piece in view.pieces.items()
        if getattr(piece, place) == giver
    }
    possible = [
        begin
        for begin, is_backup in changes_places.items()
        if is_backup or _may_take(view, taker, view.pieces[begin].other_than(place))
    ]
    sizes = {begin: view.pieces[begin].end - begin for begin in possible}
    whole = [begin for begin in possible if sizes[begin] <= slots]
    if not whole:
        yield from (_split(view, begin, begin + slots) for begin in sorted(possible, key=lambda each: sizes[each])[:1])
        return
    begin = max(whole, key=lambda each: sizes[each])
    if changes_places[begin]:
        yield _changed(view, begin, Piece(end=view.pieces[begin].end, primary=taker, backup=giver))
    else:
        yield _joining(view, begin, taker, place)


def _split(view: View, begin: int, slot: int) -> View:
    piece = view.pieces[begin]
    pieces = {**view.pieces, begin: replace(piece, end=slot), slot: piece}
    return replace(view, epoch=view.epoch + 1, pieces=dict(sorted(pieces.items())))


def _joining(view: View, begin: int, name: str, place: Place) -> View:
    return _changed(view, begin, replace(view.pieces[begin], joining=name, since=view.epoch + 1, joins_as=place))


def _changed(view: View, begin: int, piece: Piece) -> View:
    return replace(view, epoch=view.epoch + 1, pieces={**view.pieces, begin: piece})


def slots_by_server(view: View, place: Place) -> dict[str, int]:
    """How many slots each server has in a place."""
    counts = dict.fromkeys(view.servers, 0)
    for begin, piece in view.pieces.items():
        if getattr(piece, place) in counts:
            counts[getattr(piece, place)] += piece.end - begin
    return counts


def _backups_that_leave(view: View) -> Iterator[View]:
    """A backup that leaves, and that nobody can replace, is given up."""
    for begin, piece in view.pieces.items():
        if piece.backup and view.servers[piece.backup].is_leaving and not view.servers[piece.primary].is_leaving:
            yield _changed(view, begin, Piece(end=piece.end, primary=piece.primary))


def _may_take(view: View, name: str, other: str) -> bool:
    """True if a server may have a copy of which another one has the other."""
    server = view.servers[name]
    return not server.is_leaving and (not other or server.machine != view.servers[other].machine)
