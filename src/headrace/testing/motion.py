"""Where the object is at every step of an episode, and what the numbers say about it.

The contract that every synthetic dataset with numbers keeps:

- the first two numbers of the registry's *state* at step t are the object's place in the picture
  of step t, as fractions of the image's width and height;
- the first two numbers of the registry's *action* at step t are the displacement to step t + 1
  (zero at the last step), so the actions t ... t+k-1 add up to the displacement from t to t+k;
- where the tensors are wider, the third number is the same for the height above the table;
- `future/xyz_residual` of bc_z holds ten waypoints of three numbers, each the displacement from
  step t to t+1, t+2, ... t+10; the first of them is the action above.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["HIGH", "LOW", "displacements", "draw_path", "waypoints"]

# The box the object stays in: below the label, above the tag, inside the edges.
LOW = np.array([0.12, 0.4, 0.0])
HIGH = np.array([0.88, 0.80, 0.3])
_LEAST_MOVE = 0.25  # between waypoints, so that every episode visibly moves
_STEPS_PER_MOVE = 22  # a reach or a lift takes about this long in the real datasets


def draw_path(rng: np.random.Generator, steps: int) -> npt.NDArray[np.float32]:
    """The object's places [steps, 3]: x, y and height, smooth, with short rests in between."""
    count = 2 + round(steps / _STEPS_PER_MOVE)
    points = [rng.uniform(LOW, HIGH)]
    while len(points) < count:
        tries = rng.uniform(LOW, HIGH, (8, 3))
        moves = np.linalg.norm(tries[:, :2] - points[-1][:2], axis=1)
        far = tries[moves > _LEAST_MOVE]
        points.append(far[0] if len(far) else tries[np.argmax(moves)])
    along = np.linspace(0, count - 1, max(steps, 1))
    move = np.minimum(along.astype(int), count - 2)
    u = (along - move)[:, None]
    eased = u**3 * (10 - 15 * u + 6 * u**2)  # minimum jerk: at rest at both ends
    start, end = np.array(points)[move], np.array(points)[move + 1]
    path: npt.NDArray[np.float32] = (start + (end - start) * eased).astype(np.float32)
    return path[:steps]


def displacements(path: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """From every step to the next, zero at the last."""
    moves = np.zeros_like(path)
    moves[:-1] = np.diff(path, axis=0)
    return moves


def waypoints(path: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """From every step to each of the next `count` steps [steps, count, 3]."""
    steps = len(path)
    # Beyond the last step the object rests.
    ahead = np.minimum(np.arange(steps)[:, None] + np.arange(1, count + 1), steps - 1)
    moves: npt.NDArray[np.float32] = path[ahead] - path[:, None]
    return moves
