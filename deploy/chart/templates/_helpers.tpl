{{- /* The name of all objects. */ -}}
{{- define "tqhost.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- default $name .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* The labels by which Services, monitors and budgets find the hosts. They never change. */ -}}
{{- define "tqhost.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "tqhost.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "tqhost.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tqhost.serviceAccountName" -}}
{{- $default := ternary (include "tqhost.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{- define "tqhost.image" -}}
{{- $image := .Values.image -}}
{{- $tag := default .Chart.AppVersion $image.tag | printf ":%s" -}}
{{- $image.repository }}{{ ternary (printf "@%s" $image.digest) $tag (ne $image.digest "") -}}
{{- end -}}

{{- /* Refuses values that do not fit each other, which the schema cannot say in words. */ -}}
{{- define "tqhost.check" -}}
{{- range $key := list "plugins_dir" "data_dir" "shutdown_grace" -}}
{{- if regexMatch (printf "(?m)^\\s*%s\\s*=" $key) $.Values.config -}}
{{- fail (printf "config: leave out %s: the chart writes it" $key) -}}
{{- end -}}
{{- end -}}
{{- range $line := regexFindAll "(?m)^\\s*listen\\s*=.*$" .Values.config -1 -}}
{{- if not (regexMatch "\"(0\\.0\\.0\\.0|\\[::\\]):7700\"" $line) -}}
{{- fail (printf "config: %s: must be \"0.0.0.0:7700\" or \"[::]:7700\", for the probes" (trim $line)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.plugins -}}
{{- if and (eq .source "existingClaim") (not .existingClaim) -}}
{{- fail "plugins.existingClaim: must be the name of a claim, as plugins.source is existingClaim" -}}
{{- else if and (eq .source "configMap") (not .configMap) -}}
{{- fail "plugins.configMap: must be the name of a ConfigMap, as plugins.source is configMap" -}}
{{- else if and (has .source (list "image" "initContainer")) (not .image.reference) -}}
{{- fail (printf "plugins.image.reference: must be the name of an image, as plugins.source is %s" .source) -}}
{{- else if and (eq .source "initContainer") (not .image.path) -}}
{{- fail "plugins.image.path: must be a folder, as plugins.source is initContainer" -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if .enabled -}}
{{- if not (or .streams .prometheusAddress) -}}
{{- fail "autoscaling.streams: must name a stream, or autoscaling.prometheusAddress a Prometheus" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "autoscaling.maxReplicas: must not be less than autoscaling.minReplicas" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
