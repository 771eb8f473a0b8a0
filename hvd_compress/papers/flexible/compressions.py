"""What `Compression` has of the controller."""

from __future__ import annotations

from hvd_compress.compression.part import Part
from hvd_compress.compressors import TopK
from hvd_compress.papers.flexible.policy import Flexible
from hvd_compress.papers.flexible.settings import GAIN_CHANGE, HIGH, LOW
from hvd_compress.request.request import Request


class TradingOff(Part):
    """Part of `Compression`."""

    @staticmethod
    def flexible(
        low: float = LOW,
        high: float = HIGH,
        *,
        gain_change: float = GAIN_CHANGE,
        gain: str = "curve",
        solver: str = "exact",
        layerwise: bool = False,
    ) -> Request:
        """Send the elements of largest magnitude, in each bucket as many as the paper's trade-off says; or all.

        The ratio of each bucket is the knee of compression time, communication time and 1 / gain, the gain being the
        share of the corrected gradient's squared norm that is sent (Eq. 2 and 6 of Tyagi and Swany, "Flexible
        Communication for Optimal Distributed Learning"); all-gather or AR-Topk, by ring or tree, what takes the least
        by alpha-beta lines (Eq. 4). A bucket for which no ratio takes less than no compression travels dense. It does
        not know accuracy: auto() takes what trains as without compression. With HVD_COMPRESS_ADAPT=0 the ratio in the
        middle is kept.

        Args:
            low, high: bounds of the ratio, in (0, 1]: c_low and c_high of the paper. The knee lies between them: a
                lower one brings more speed and less accuracy.
            gain_change: the relative change of the gain at which the ratio is chosen anew; 0.1 is ten per cent.
            gain: "curve" reads it from the gradient for all ratios at once; "rollout" trains some steps with each of a
                few ratios and takes them back (see optimizer.rollout), as the paper does.
            solver: "exact" compares all ratios of a grid; "nsga2" searches, as the paper does (needs pymoo).
            layerwise: select in each parameter by itself instead of in the fused bucket.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        asked = Flexible(low, high, gain_change, gain, solver)
        return Request(TopK(asked.start, layerwise), policy=asked)
