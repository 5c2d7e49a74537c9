package admission

import (
	"bytes"
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/webhook/internal/owner"
)

const refsPath = "/metadata/ownerReferences"

// operation is one operation of an RFC 6902 JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// ownerPatch writes edits as a JSON patch on the raw object. An append stays an
// append, so that a list of thousands of references is never sent back; replaced
// and removed entries are guarded by a test of their UID.
func ownerPatch(raw []byte, refs []metav1.OwnerReference, edits []owner.Edit) ([]byte, error) {
	if len(edits) == 0 {
		return nil, nil
	}
	var ops []operation
	for _, e := range edits {
		at := fmt.Sprintf("%s/%d", refsPath, e.Index)
		switch e.Op {
		case owner.EditReplace:
			ops = append(ops, guard(at, e)...)
			ops = append(ops, operation{"replace", at, e.Reference})
		case owner.EditRemove:
			ops = append(ops, guard(at, e)...)
			ops = append(ops, operation{Op: "remove", Path: at})
		case owner.EditAppend:
			if len(refs) == 0 {
				ops = append(ops, operation{"add", refsPath, []metav1.OwnerReference{e.Reference}})
			} else {
				ops = append(ops, operation{"add", refsPath + "/-", e.Reference})
			}
		default:
			return nil, fmt.Errorf("unknown edit %q", e.Op)
		}
	}
	return encoded(raw, ops)
}

// encoded is a list of operations as a patch that applies to the raw object.
func encoded(raw []byte, ops any) ([]byte, error) {
	patch, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return patch, checkPatch(raw, patch)
}

// guard makes the patch fail where another entry has come to this place. An entry
// without a UID, which the API server is about to refuse, has nothing to compare.
func guard(at string, e owner.Edit) []operation {
	if e.Was == "" {
		return nil
	}
	return []operation{{"test", at + "/uid", e.Was}}
}

// checkPatch applies the patch as the API server will. A patch that decodes but
// does not apply is a 500 for the user there, whatever the failure policy says.
func checkPatch(raw, patch []byte) error {
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return fmt.Errorf("decoding the patch: %w", err)
	}
	out, err := p.Apply(raw)
	if err != nil {
		return fmt.Errorf("applying the patch: %w", err)
	}
	if !isObject(out) {
		return fmt.Errorf("the patched object is no object")
	}
	return nil
}

// isObject reports whether JSON holds an object, as far as its beginning shows.
func isObject(raw []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) }
