"""What an episode is about, in words."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

__all__ = ["WORDS", "instruction", "paraphrase", "pushing"]

_T = TypeVar("_T")

_COLOURS = ("red", "blue", "green", "yellow", "orange", "white", "brown", "silver")
_THINGS = (
    "mug", "bowl", "sponge", "spoon", "apple", "can of beans", "toy car", "cloth", "pot lid",
    "marker", "banana", "water bottle", "screwdriver", "carrot", "wooden block", "teapot",
)  # fmt: skip
_PLACES = (
    "on the tray", "in the sink", "in the top drawer", "next to the kettle", "on the folded towel",
    "into the basket", "at the edge of the table", "behind the cereal box", "on the stove",
)  # fmt: skip
_TASKS = (
    "pick up the {colour} {thing} and place it {place}",
    "put the {colour} {thing} {place}",
    "move the {thing} closer to the {colour} {other}",
    "take the {colour} {thing} and set it down {place}",
    "slide the {thing} to the left of the {colour} {other}",
    "hand over the {colour} {thing}",
    "open the drawer, then put the {thing} {place}",
    "stack the {colour} {thing} on top of the {other}",
)
_SHAPES = ("cube", "star", "moon", "hexagon", "pentagon")
_PUSHES = (
    "push the {colour} {shape} to the left side of the {second} {other}",
    "slide the {colour} {shape} towards the {second} {other}",
    "separate the {colour} {shape} from the {second} {other}",
    "schiebe den grünen Würfel neben den gelben Stern",
    "pousse l'étoile rouge à côté du cube bleu",
    "пододвинь жёлтый куб к синему полумесяцу",
    "把红色的星星推到蓝色方块旁边",
    "push the {colour} {shape} ➜ {second} {other} 🙂",
)

#: Ordinary values for text fields, by the last part of their key.
WORDS: dict[str, tuple[str, ...]] = {
    "robot": ("sawyer", "widowx", "baxter", "kuka", "fetch", "franka"),
    "action": (
        'pick_and_place("yellow shirt", "drawer")',
        'pick_and_toss("soda can", "recycling bin")',
        'pick_and_place("black socks", "laundry hamper")',
        "done()",
    ),
    "object": ("yellow shirt", "soda can", "black socks", "picture book", "lemon"),
    "receptacles": ("drawer", "recycling bin", "laundry hamper", "shelf", "sofa"),
    "last_action_str": ("m", "r", "l", "ls", "zm", "zp", "yp", "p", "d", "end"),
    "task_type": ("ObjectNavType", "PickupType", "FetchType", "RoomVisit"),
    "task_target_split": ("train", "val"),
    "end-effector type": ("suction", "spatula"),
    "task": ("visual_manipulation", "rotate", "rearrange", "sweep_without_exceeding"),
    "asset_type": ("scene", "object"),
    "key_name": ("dragged_obj_1", "base_obj", "scene", "container"),
    "obj_name": ("bowl", "L-shaped block", "three-sided rectangle", "pan", "letter R"),
    "texture_name": ("red swirl", "wooden", "green paisley", "tiger", "blue and purple stripe"),
    "furniture": ("lamp", "round_table", "desk", "drawer", "cabinet", "chair", "stool"),
    "initial_randomness": ("low", "med", "high"),
    "episode_task": ("single_object", "multi_object_2"),
    "length": ("S", "M", "L"),
    "size": ("S", "L"),
    "primitive": ("grasp", "place_on_fixture", "regrasp", "insert", "rotate"),
    "success_labeled_by": ("human", "program"),
    "disclaimer": ("Success was labelled by eye; a few labels may be wrong.",),
    "env_name": ("lab kitchen", "office counter"),
    "location_name": ("rs:loc:kitchen", "rs:loc:office"),
    "task_family_name": ("pick", "move near", "open drawer", "place into receptacle"),
    "collection_mode_name": ("teleop", "on-policy"),
    "data_type_name": ("robot demonstrations",),
    "objects_family_name": ("groceries", "kitchenware"),
}


def instruction(rng: np.random.Generator) -> str:
    """Something to do on a table."""
    template = _pick(rng, _TASKS)
    things = rng.permutation(len(_THINGS))[:2]
    return template.format(
        colour=_pick(rng, _COLOURS),
        thing=_THINGS[things[0]],
        other=_THINGS[things[1]],
        place=_pick(rng, _PLACES),
    )


def paraphrase(text: str, rng: np.random.Generator) -> str:
    """The same in other words."""
    return _pick(rng, ("please {}", "{}, carefully", "now {}", "{} when you are ready")).format(
        text
    )


def pushing(rng: np.random.Generator) -> str:
    """Something to do with the blocks of language_table, not always in English."""
    colours = rng.permutation(4)
    return _pick(rng, _PUSHES).format(
        colour=_COLOURS[colours[0]],
        second=_COLOURS[colours[1]],
        shape=_pick(rng, _SHAPES),
        other=_pick(rng, _SHAPES),
    )


def _pick(rng: np.random.Generator, options: tuple[_T, ...]) -> _T:
    return options[int(rng.integers(len(options)))]
