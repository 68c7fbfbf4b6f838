"""Who spawned whom, as it travels: an actor knows its creator, and that one's, wherever they live."""

from __future__ import annotations

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.wire.messages import Creator, Place

NOWHERE = Extent((), ())


def creator_of(instance: Instance) -> Creator | None:
    """An instance as it travels; None for a client."""
    if instance.control is None and instance.node is not None:
        return None
    place = instance.rank.rank, instance.rank.extent.labels, instance.rank.extent.sizes
    above = creator_of(instance.creator) if instance.creator is not None else None
    return Creator(instance.key, instance.class_name, place, above)


def instance_of(creator: Creator | None) -> Instance | None:
    """The instance of an actor elsewhere, as far as its descendants know it."""
    if creator is None:
        return None
    return Instance(creator.key, creator.class_name, point_of(creator.place), None, None, instance_of(creator.creator))


def point_of(place: Place) -> Point:
    rank, labels, sizes = place
    return Extent(labels, sizes).point(rank)
