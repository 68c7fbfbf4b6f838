"""Conversion of actor identities for the wire. Each actor carries its chain of creators to other nodes."""

from __future__ import annotations

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.wire.messages import Creator, Place


def creator_of(instance: Instance) -> Creator | None:
    """Return the wire form of an instance; None for a client."""
    if instance.control is None and instance.node is not None:
        return None
    place = instance.rank.rank, *instance.rank.extent.dims
    above = creator_of(instance.creator) if instance.creator is not None else None
    return Creator(instance.key, instance.class_name, place, above)


def instance_of(creator: Creator | None) -> Instance | None:
    """Return the instance of a remote actor, with the fields that its descendants carry."""
    if creator is None:
        return None
    return Instance(creator.key, creator.class_name, point_of(creator.place), None, None, instance_of(creator.creator))


def point_of(place: Place) -> Point:
    rank, labels, sizes = place
    return Extent(labels, sizes).point(rank)
