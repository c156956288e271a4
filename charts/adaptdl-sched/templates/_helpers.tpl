{{- /* The scheduler knows its own objects by fixed names, so there is one installation to a cluster. */ -}}
{{- define "adaptdl.labels" -}}
app: adaptdl-sched
app.kubernetes.io/name: adaptdl-sched
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "adaptdl.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag }}{{ end }}
{{- end }}
{{- define "adaptdl.config" -}}
{{- $kubernetes := dict "listen" (printf "0.0.0.0:%v" .Values.supervisor.port) "namespace" .Values.namespace -}}
{{- if .Values.webhook.enabled }}{{- $_ := set $kubernetes "webhookListen" (printf "0.0.0.0:%v" .Values.webhook.port) }}{{ end -}}
{{- if .Values.api.enabled }}{{- $_ := set $kubernetes "apiListen" (printf "0.0.0.0:%v" .Values.api.port) }}{{ end -}}
{{- /* values of an older chart (--reuse-values) have none of these */ -}}
{{- if eq (toString .Values.tokens) "false" }}{{- $_ := set $kubernetes "tokens" false }}{{ end -}}
{{- with (.Values.job).defaultResources }}{{- $_ := set $kubernetes "defaultResources" (toJson .) }}{{ end -}}
{{- with ((.Values.job).patch).pods }}{{- $_ := set $kubernetes "podPatch" (toJson .) }}{{ end -}}
{{- with ((.Values.job).patch).containers }}{{- $_ := set $kubernetes "containerPatch" (toJson .) }}{{ end -}}
{{- $own := dict "intervalSeconds" .Values.intervalSeconds "kubernetes" $kubernetes -}}
{{- if .Values.policy }}{{- $_ := set $own "policy" .Values.policy }}{{ end -}}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end }}
