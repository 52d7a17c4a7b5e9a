"""ELI, the energy-based latent aligner: undo the drift that makes a vision model forget its old classes.

Learn how latents moved while a model learned new classes, from data of the new classes alone, and move the latents of
old samples back before the head reads them::

    aligner = eli.EnergyAligner().fit(eli.Latents(old_model, "fc"), eli.Latents(new_model, "fc"), new_task_loader)
    eli.attach(new_model, "fc", aligner, gate=eli.ByPrediction(known=50))
    aligner.save("aligner.safetensors")

With a few old images at hand, this does better, and needs no gate::

    blend = eli.fit_blend(old_model, new_model, "fc", new_task_loader, exemplar_loader, known=50)
    eli.attach(new_model, "fc", blend)

This package needs torch, numpy and safetensors only. The bench (data sets, learners, experiments, reports, the `eli`
command) is `eli.lab`, which is never imported from here.
"""

from eli.aligner import Aligner, FitReport
from eli.attach import attach, detach
from eli.attachments import Attachment, OutputsAttachment, ReadoutAttachment
from eli.blend import Blend
from eli.controls import Identity, MeanShift, RandomShift, Ridge
from eli.discriminant import Discriminant
from eli.dose import Dose
from eli.energy import EnergyModel
from eli.energy_aligner import EnergyAligner
from eli.errors import AttachError, EliError, FileFormatError, LatentError, NotFittedError, OptionError
from eli.extraction import Latents
from eli.fit_blend import fit_blend
from eli.gates import Always, ByEnergy, ByMask, ByPrediction, ByProbe, Gate
from eli.langevin import descend
from eli.local_shift import LocalShift
from eli.outputs import OldOutputs
from eli.prototypes import NearestMean, Prototypes
from eli.readout import Aligned, HeadScores, Readout

__version__ = "0.1.0"

__all__ = [
    "Aligned",
    "Aligner",
    "Always",
    "AttachError",
    "Attachment",
    "Blend",
    "ByEnergy",
    "ByMask",
    "ByPrediction",
    "ByProbe",
    "Discriminant",
    "Dose",
    "EliError",
    "EnergyAligner",
    "EnergyModel",
    "FileFormatError",
    "FitReport",
    "Gate",
    "HeadScores",
    "Identity",
    "LatentError",
    "Latents",
    "LocalShift",
    "MeanShift",
    "NearestMean",
    "NotFittedError",
    "OldOutputs",
    "OptionError",
    "OutputsAttachment",
    "Prototypes",
    "RandomShift",
    "Readout",
    "ReadoutAttachment",
    "Ridge",
    "attach",
    "descend",
    "detach",
    "fit_blend",
]
