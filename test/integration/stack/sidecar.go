package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/sidecar/settings"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Sidecar is a belay-sidecar as the kubelet would run it for a Pod: with the variables and the
// files of the container that was injected.
type Sidecar struct {
	*Process
	// Dir has the files that are mounted: the token and the CA.
	Dir string
	// Env are its variables.
	Env []string
}

// StartSidecar runs the injected sidecar of a Pod as a process. extra variables take the place
// of injected ones.
func (s *Stack) StartSidecar(ctx context.Context, pod *corev1.Pod, extra ...string) (*Sidecar, error) {
	dir, err := os.MkdirTemp(s.Dir, "mount-")
	if err != nil {
		return nil, err
	}
	if err := s.Mount(ctx, pod, dir); err != nil {
		return nil, err
	}
	return s.RunSidecar(pod, dir, extra...)
}

// RunSidecar is StartSidecar with files that are mounted already.
func (s *Stack) RunSidecar(pod *corev1.Pod, dir string, extra ...string) (*Sidecar, error) {
	env, err := SidecarEnv(pod)
	if err != nil {
		return nil, err
	}
	env = append(env, settings.TokenFile+"="+filepath.Join(dir, settings.TokenPath), settings.CAFile+"="+filepath.Join(dir, settings.CAPath), settings.LogLevel+"=debug")
	env = append(env, extra...)
	s.mu.Lock()
	s.started++
	name := fmt.Sprintf("sidecar-%d", s.started)
	s.mu.Unlock()
	p, err := startProcess(name, filepath.Join(s.bin, "belay-sidecar"), filepath.Join(s.Dir, name+".log"), nil, env...)
	if err != nil {
		return nil, err
	}
	return &Sidecar{Process: p, Dir: dir, Env: env}, nil
}

// SidecarEnv are the variables of a Pod's sidecar with their values, as the kubelet sets them.
// The Pod's IP address is that of the loopback interface.
func SidecarEnv(pod *corev1.Pod) ([]string, error) {
	c := SidecarOf(pod)
	if c == nil {
		return nil, fmt.Errorf("pod %s has no sidecar", pod.Name)
	}
	var env []string
	for _, e := range c.Env {
		value := strings.ReplaceAll(e.Value, "$$", "$")
		if e.ValueFrom != nil {
			switch path := e.ValueFrom.FieldRef.FieldPath; path {
			case "metadata.namespace":
				value = pod.Namespace
			case "metadata.name":
				value = pod.Name
			case "metadata.uid":
				value = string(pod.UID)
			case "status.podIP":
				value = "127.0.0.1"
			default:
				return nil, fmt.Errorf("variable %s is of field %s, which no kubelet here knows", e.Name, path)
			}
		}
		env = append(env, e.Name+"="+value)
	}
	return env, nil
}

// WaitSidecars waits until Pods of a namespace that ask for a sidecar get one: the API server
// acts on a registration a moment after it is stored.
func (s *Stack) WaitSidecars(ctx context.Context, namespace string) error {
	for {
		p, err := s.Kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "probe", Annotations: map[string]string{v1alpha1.SidecarAnnotation: v1alpha1.SidecarInject}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && SidecarOf(p) != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting for sidecars: %w", ctx.Err()), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// SidecarOf is the container that was injected; nil for none.
func SidecarOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == v1alpha1.SidecarName {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}

// Mount writes what the kubelet mounts for the sidecar of a Pod, as its volume says.
func (s *Stack) Mount(ctx context.Context, pod *corev1.Pod, dir string) error {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == v1alpha1.SidecarName && v.Projected != nil {
			return s.project(ctx, pod, v.Projected, dir)
		}
	}
	return errors.New("the pod has no volume of the sidecar")
}

func (s *Stack) project(ctx context.Context, pod *corev1.Pod, v *corev1.ProjectedVolumeSource, dir string) error {
	files := map[string]string{}
	for _, source := range v.Sources {
		switch {
		case source.ServiceAccountToken != nil:
			t := source.ServiceAccountToken
			token, err := s.PodToken(ctx, pod, t.Audience, *t.ExpirationSeconds)
			if err != nil {
				return err
			}
			files[t.Path] = token
		case source.ConfigMap != nil:
			cm, err := s.Kube.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, source.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("reading the CA: %w", err)
			}
			for _, item := range source.ConfigMap.Items {
				files[item.Path] = cm.Data[item.Key]
			}
		case source.ClusterTrustBundle != nil:
			b, err := s.Kube.CertificatesV1().ClusterTrustBundles().Get(ctx, *source.ClusterTrustBundle.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("reading the CA: %w", err)
			}
			files[source.ClusterTrustBundle.Path] = b.Spec.TrustBundle
		}
	}
	for path, content := range files {
		if err := Replace(filepath.Join(dir, path), content); err != nil {
			return err
		}
	}
	return nil
}

// Replace writes a file in one step, as the kubelet does.
func Replace(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// PodToken requests a token that is bound to a Pod.
func (s *Stack) PodToken(ctx context.Context, pod *corev1.Pod, audience string, seconds int64) (string, error) {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	t, err := s.Kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{audience}, ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of pod %s: %w", pod.Name, err)
	}
	return t.Status.Token, nil
}
