{{- /* The image of one part: include "belay.image" (list . "webhook"). */ -}}
{{- define "belay.image" -}}
{{- $values := (index . 0).Values -}}
{{- $part := index . 1 -}}
{{- with (index $values $part).image -}}
{{- . -}}
{{- else -}}
{{- printf "%s/belay-%s:%s" $values.image.registry $part ($values.image.tag | default (index . 0).Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What is there while "helm uninstall" runs what comes before it. */ -}}
{{- define "belay.uninstall" }}
  name: belay-uninstall
  labels:
    app.kubernetes.io/name: belay
    app.kubernetes.io/component: uninstall
  annotations:
    helm.sh/hook: pre-delete
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
