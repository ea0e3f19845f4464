"""Continue videos with a model: an animation and a strip of each, next to the real frames."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.command.sample.drawing import Drawing
from onepass.foundation.errors import UserError
from onepass.foundation.folders import count_noun
from pixelcnn.data.video import read_episodes
from pixelcnn.sampling.grids import grid, write_gif, write_png
from pixelcnn.video_prediction import predict

MANY = 16  # default number of videos


class VideoDrawing(Drawing):
    """Predictions of the dev clips in a folder of episodes, an animation and a strip for each."""

    unit = "video"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        if given.video is None:
            raise UserError("A video model needs `--video`, a folder of episodes to continue.")
        self._video = read_episodes(given.video, model.config.data, model.front.statistics)
        self._clips = self._video.splits["dev"]
        self.total = min(given.num or MANY, len(self._clips.frames))
        self._context = model.config.conditioning.context_frames
        rows, endings = range(self.total), ("gif", "png")
        self.files = [given.out / f"video_{given.seed}_{r}.{e}" for r in rows for e in endings]

    def start(self) -> Iterator[Any]:
        """Return an iterator over videos, each the predicted frames after a clip's context."""
        clips, statistics, given = self._clips, self._video.statistics, self.given
        heat = self.arguments.get("temperature", 1.0)
        drawn = [
            predict(
                self.model,
                clips.frames[row, : self._context],
                clips.actions[row, :-1] * statistics.action_std + statistics.action_mean,
                clips.states[row, :-1] * statistics.state_std + statistics.state_mean,
                seed=given.seed,
                row=row,
                temperature=heat,
            )
            for row in range(self.total)
        ]
        return iter(drawn)

    def write(self, part: Any) -> int:
        """Write the animation and the strip of a video."""
        real = self._clips.frames[self.written]
        both = [real, np.stack([*real[: self._context], *part])]
        animation, strip = self.files[2 * self.written : 2 * self.written + 2]
        write_gif(animation, [grid(pair, 2) for pair in zip(*both, strict=True)])
        write_png(strip, grid([*both[0], *both[1]], len(real)))
        return 1

    def finish(self) -> None:
        """Print a summary of the videos in one line."""
        count = count_noun(self.written, "video")
        print(f"{self.given.out}: {count}; real frames left or above, drawn ones right or below")
