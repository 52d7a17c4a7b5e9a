"""ELI, the energy-based latent aligner: undo the drift that makes a vision model forget its old classes.

Learn how latents moved while a model learned new classes, from data of the new classes alone, and move the latents of
old samples back before the head reads them::

    aligner = elign.EnergyAligner().fit(elign.Latents(old_model, "fc"), elign.Latents(new_model, "fc"), new_task_loader)
    elign.attach(new_model, "fc", aligner, gate=elign.ByPrediction(known=50))
    aligner.save("aligner.safetensors")

With a few old images at hand, this does better, and needs no gate::

    blend = elign.fit_blend(old_model, new_model, "fc", new_task_loader, exemplar_loader, known=50)
    elign.attach(new_model, "fc", blend)

This package needs torch, numpy and safetensors only. The bench (data sets, learners, experiments, reports, the `elign`
command) is `elign.lab`, which is never imported from here.
"""

from elign.aligner import Aligner, FitReport
from elign.attach import attach, detach
from elign.attachments import Attachment, OutputsAttachment, ReadoutAttachment
from elign.blend import Blend
from elign.controls import Identity, MeanShift, RandomShift, Ridge
from elign.discriminant import Discriminant
from elign.dose import Dose
from elign.energy import EnergyModel
from elign.energy_aligner import EnergyAligner
from elign.errors import AttachError, ElignError, FileFormatError, LatentError, NotFittedError, OptionError
from elign.extraction import Latents
from elign.fit_blend import fit_blend
from elign.gates import Always, ByEnergy, ByMask, ByPrediction, ByProbe, Gate
from elign.langevin import descend
from elign.local_shift import LocalShift
from elign.outputs import OldOutputs
from elign.prototypes import NearestMean, Prototypes
from elign.readout import Aligned, HeadScores, Readout

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
    "ElignError",
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
