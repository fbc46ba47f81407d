"""Renders and lints a chart by Helm's own engine, and validates the objects by the schemas of Kubernetes.

    chart.py CHART [VERSION…] < values.json

In: a list of values, as JSON on stdin, and versions of Kubernetes. Out: a list of answers, as JSON. `refused`
says why Helm does not take the values; `notes` and `objects` are rendered in the namespace `production`;
`lint` has the findings, without those for information; `problems` says what the schemas of each version
refuse.
"""

import json
import sys

import helm_python
import yaml

# Helm's severities: 1 is for information.
WARNING = 2


def answer(chart, path, values):
    try:
        files = chart.render(values, name="tqhost", namespace="production")
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    notes = files.pop("tqhost/templates/NOTES.txt")
    objects = [each for name in sorted(files) for each in yaml.safe_load_all(files[name]) if each]
    found = helm_python.lint(path, values, strict=True, namespace="production")
    lint = [each for each in found["messages"] if each["severity"] >= WARNING]
    return {"notes": notes, "objects": objects, "lint": lint}


def problems(each, versions):
    """The problems of an object. An unknown field is one, too."""
    # These take seconds, and only one test needs them.
    import kubernetes_validate
    from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor
    from pydantic import ValidationError

    models = {model.__name__: model for model in (PodMonitor, ScaledObject, TriggerAuthentication)}
    kind = each["kind"]
    if kind in models:
        try:
            model = models[kind].model_validate(each)
        except ValidationError as error:
            yield f"{kind}: {error}"
        else:
            # A model leaves out the fields that it does not know.
            known = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if known != each:
                yield f"{kind}: of {each} only {known} is known"
        return
    for version in versions:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except Exception as error:
            yield f"{kind} in Kubernetes {version}: {error}"


def main():
    path, versions = sys.argv[1], sys.argv[2:]
    with helm_python.Chart.load(path) as chart:
        answers = [answer(chart, path, values) for values in json.load(sys.stdin)]
    for each in answers if versions else []:
        each["problems"] = [text for made in each.get("objects", []) for text in problems(made, versions)]
    json.dump(answers, sys.stdout)


main()
