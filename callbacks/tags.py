"""What the tags of TensorBoard mean, and which of them matter most."""

import re

from tensorboard.compat.proto.summary_pb2 import SummaryMetadata  # pyright: ignore[reportAttributeAccessIssue]

from fl_lightning.functional.accuracy_curves import FINAL_IS

# TensorBoard sorts the groups of tags by name, capitals first, and knows no other order. In this group what matters most comes
# before the curves of single classes. ``forgetting/every_K`` shares the tag of ``forgetting/round``.
_OVERVIEW = {
    r"test/accuracy": "Overview/test_accuracy",
    r"val/accuracy": "Overview/validation_accuracy",
    r"forgetting/(round|every_\d+)": "Overview/forgetting_of_the_global_model",
    r"forgetting/client_mean": "Overview/forgetting_of_clients",
    r"personal/(held_out|matched)/worst_decile": "Overview/accuracy_of_the_worst_tenth_of_clients",
    r"tasks/accuracy": "Overview/accuracy_on_tasks",
    r"tasks/forgetting": "Overview/forgetting_of_tasks",
}

_CLIENT_FORGETTING = (
    "F_ki: change of the accuracy on a client's validation samples by the local fit of another client, mean over pairs of the "
    "cohort."
)
_DROP = "Drop of the global model's test accuracy by class since the evaluation before, mean over classes, gains not counted."
_OR_OWN = "; where clients keep personal models, of these, each on its client's samples, mean over clients."
_PERSONAL = (
    "Accuracy of personal models, each on its client's samples: validation parts, held-out test parts, or parts of the "
    "test set matched to their classes."
)
_BYTES = "Weights, buffers and whatever else a method sends."

# The first pattern that fits the whole tag counts.
DESCRIPTIONS = {
    r"test/accuracy|Overview/test_accuracy": f"Accuracy of the global model on the test set{_OR_OWN} No model is chosen by it.",
    r"val/accuracy|Overview/validation_accuracy": "Accuracy of the global model on clients' joined validation samples"
    f"{_OR_OWN}",
    r"(test|val)/loss": "Mean cross entropy of the same models on plain logits, whatever the loss of the training is.",
    r"(test|val)/global_accuracy": "Accuracy of the global model on the test set, or on clients' joined validation samples.",
    r"(test|val)/global_loss": "Mean cross entropy of the global model on plain logits.",
    r"personal/(\w+)/(fine_tuned_)?mean": f"{_PERSONAL} Mean over clients.",
    r"personal/(\w+)/(fine_tuned_)?sample_mean": f"{_PERSONAL} Each sample counts once.",
    r"personal/(\w+)/(fine_tuned_)?visited_mean": f"{_PERSONAL} Mean over clients that have taken part.",
    r"personal/(\w+)/(fine_tuned_)?never_visited": f"{_PERSONAL} Share of the clients with samples that have never taken part.",
    r"personal/(\w+)/(fine_tuned_)?std": f"{_PERSONAL} Standard deviation over clients.",
    r"personal/(\w+)/(fine_tuned_)?worst_decile|Overview/accuracy_of_the_worst_tenth_of_clients": f"{_PERSONAL} "
    "Mean of the lowest tenth of the clients.",
    r"personal/(\w+)/(fine_tuned_)?min": f"{_PERSONAL} The lowest.",
    r"personal/(\w+)/new_clients_(fine_tuned_)?mean": f"{_PERSONAL} Mean over clients that never took part, as they are or "
    "fine-tuned.",
    r"personal/(\w+)/(fine_tuned_)?without_samples": f"{_PERSONAL} Number of clients that have none, which are left out.",
    r"personal/cohort_(before|after)": "Accuracy of the cohort's personal models on their validation parts, around the fit.",
    r"personal/cohort_(before|after)_\w+": "The same, as the end of the name says: over samples, the deviation, the lowest.",
    r"personal/distribution": "Accuracy of every client's personal model on that client's samples.",
    r"forgetting/personal_since_visit": "Change of the accuracy of a client's personal model on its validation part since the "
    "end of its last visit, mean over clients whose last visit was measured. Negative is forgetting.",
    r"forgetting/client_mean|Overview/forgetting_of_clients": f"{_CLIENT_FORGETTING} Negative is forgetting.",
    r"forgetting/client_mean_positive": f"{_CLIENT_FORGETTING} With the other sign: positive is forgetting.",
    r"forgetting/client_worst": "Lowest F_k: change of the accuracy on a client's validation samples by the local fits of the "
    "others, mean over those, of the client whose samples are forgotten most. Negative is forgetting.",
    r"forgetting/from_best": "F: drop of the global model's test accuracy by class from the best evaluation before, mean over "
    "classes. Positive is forgetting.",
    r"forgetting/(round|every_\d+)|Overview/forgetting_of_the_global_model": f"F_t: {_DROP} Positive is forgetting.",
    r"forgetting/local_mean|forgetting/local": "F_kt: drop of the test accuracy by class from the model that a client receives "
    "to the one that it sends, mean over classes. Positive is forgetting.",
    r"forgetting/loss_.*_fedavg": "What it is where FedAvg's local steps start from the same global model of FedReg.",
    r"forgetting/loss_.*": "Cross entropy on the training samples of the clients of the round before, in nats: of the global "
    "model (before), of the clients' models (after), and their difference.",
    r"forgetting/fisher_correlation.*": "Correlation over weights of the Fisher information of pseudo data, or of a client's "
    "samples (local), with that of the clients of the last rounds.",
    r"forgetting/clients": "Rows are clients' models, columns clients' validation samples. Red is forgetting. The "
    "last column and row are means over the others.",
    r"forgetting/drops": f"{_DROP} A row a class, a column an evaluation.",
    r"class_accuracy/heatmap": "Test accuracy of the global model. A row a class, a column an evaluation.",
    r"class_accuracy/one_round": "Test accuracy by class of the global model before a round, of each client, and after.",
    r"class_accuracy/.*": "Accuracy of the global model on the test samples of one class.",
    r"label_counts/partition": "Share of each class in the samples of the first clients and of all of them.",
    r"label_counts/cohort": "Share of each class in the samples of the round's clients, of these together, and of all.",
    r"communication/(total_)?down": f"Bytes from the server to the clients, of the round or in total. {_BYTES}",
    r"communication/(total_)?up": f"Bytes from the clients to the server, of the round or in total. {_BYTES}",
    r"task_bytes/(down|up)_\d+": "Bytes, in total, while clients were at that position of their streams; a round's count "
    "for its clients' positions in equal parts.",
    r"train/loss": "Mean loss of the local steps, mean over the clients of the round.",
    r"train/nonfinite_clients": "Clients of the round that were left out because their update was not finite.",
    r"train/lost": "1 in a round of which nothing counts, as more than half of its updates were not finite, else 0.",
    r"train/undone": "1 in a round whose server step made the model non-finite and was undone, else 0.",
    r"privacy/epsilon": "Epsilon spent so far, at the delta of the defence.",
    r"tasks/accuracy|Overview/accuracy_on_tasks": "Accuracy on the tasks begun: of clients' "
    "models, mean over tasks and clients; or of the global model on the test samples of all classes seen.",
    r"tasks/forgetting|Overview/forgetting_of_tasks": "Drop from the best accuracy on each earlier task, mean over tasks and, "
    "where clients learn different tasks, clients. Positive is forgetting.",
    r"tasks/forgetting_by_class": "Drop from the best accuracy of each class, mean over the classes of a task, then over "
    "earlier tasks. Positive is forgetting.",
    r"tasks/average_incremental_accuracy": "Mean of the accuracy after each task so far, the first one included.",
    r"tasks/old_accuracy": "Accuracy of the global model on the classes of earlier tasks.",
    r"tasks/new_accuracy": "Accuracy of the global model on the classes that came with the newest task.",
    r"tasks/task_found": "Share of the samples whose predicted class is of the sample's task.",
    r"tasks/right_where_found": "Accuracy among the samples whose predicted class is of the sample's task.",
    r"tasks/nearest_mean_accuracy": "Accuracy of iCaRL's classifier by the nearest class mean, on all classes seen.",
    r"tasks/confusion": "Share of the samples of each task, a row, that are taken for one of each task, a column.",
    r"tasks/classes": "Drop of each class from its best accuracy, a column after each task, with that and the rounds of its "
    "samples.",
    r"tasks/backward_transfer": "Change of the accuracy on each earlier task since it was learned. Negative is forgetting.",
    r"tasks/model_megabytes": "Size of all clients' models in float32, without zeros, in 10^6 bytes.",
    r"tasks/accuracy_table": "Mean accuracy over clients, or of the global model: a row after each task, a column on each.",
    r"tasks/attention/.*": "How much a client's tasks build on tasks of others.",
    r"final/.*_last_rounds_mean": f"The number that runs are compared by: {FINAL_IS}.",
    r"final/.*": "A reading of the accuracy curve at the end of the run, as in results.json.",
}


def metadata(tag: str, plugin: str) -> SummaryMetadata:
    """For TensorBoard's plugin: what a tag means; without a description for tags of others."""
    text = next((text for pattern, text in DESCRIPTIONS.items() if re.fullmatch(pattern, tag)), "")
    return SummaryMetadata(summary_description=text, plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))


def overview_tag(tag: str) -> str | None:
    """The tag under which TensorBoard shows a scalar first; None for those that matter less."""
    return next((name for pattern, name in _OVERVIEW.items() if re.fullmatch(pattern, tag)), None)
