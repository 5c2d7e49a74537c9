package spawn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Client is what a spawn needs of a client. client.Client of controller-runtime has
// it, and so has a wrapper of a few lines around a clientset.
//
// Get must read from the API server. That of a manager's client reads from a cache,
// which does not know yet what was just created, and starts to watch whole kinds;
// make one with client.New, or with Cache.DisableFor.
type Client interface {
	Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
}

// Step is one part of a spawn, made by Create, Update, Patch or Call. Its methods
// return a changed copy.
type Step struct {
	verb          string
	name          string
	build         func() (client.Object, client.Patch, error) // nil for a Call
	send          func(ctx context.Context, c Client, obj client.Object, patch client.Patch) error
	creates       bool
	identity      []any
	same          func(stored client.Object) bool
	optional      bool
	noReturnAfter bool
}

// Create creates an object, and has its UID and all that the API server knows of it
// in obj when it is done. Until then obj is as the caller made it: each try sends a
// copy. The object is a new one for each Do, and needs a name, for without one a
// create whose answer is lost would be repeated under another; see [Name].
//
// An object that is there already and is of the same work is success: obj is then
// that object. How that is decided is in the package comment.
func Create(obj client.Object, opts ...client.CreateOption) Step {
	return CreateFrom(func() (client.Object, error) { return obj, nil }, opts...)
}

// CreateFrom is a Create whose object depends on what earlier steps learnt: the UID
// of an owner, say. build is called once, when its turn has come. An error of build
// fails the step.
func CreateFrom(build func() (client.Object, error), opts ...client.CreateOption) Step {
	return Step{
		verb:    "create",
		creates: true,
		build:   withoutPatch(build),
		send: func(ctx context.Context, c Client, obj client.Object, _ client.Patch) error {
			return c.Create(ctx, obj, opts...)
		},
	}
}

// Update replaces an object by what build returns, and has the API server's answer
// in it when it is done. build is called before every try. Where the object carries
// a resourceVersion and somebody else was faster, the object is read anew into what
// build returned last, and build is asked again: so it should change that object
// (the caller's variable) and not make a new one.
//
// An update replaces annotations, too. Take the object that Create left, or Patch,
// or the AnnotationSpawn is lost, and the work is not known again.
func Update(build func() (client.Object, error), opts ...client.UpdateOption) Step {
	return Step{
		verb:  "update",
		build: withoutPatch(build),
		send: func(ctx context.Context, c Client, obj client.Object, _ client.Patch) error {
			return c.Update(ctx, obj, opts...)
		},
	}
}

// Patch patches an object, and has the API server's answer in it when it is done.
// build returns the object, of which a name and a namespace suffice for most
// patches, and the patch. It is called before every try, as that of an Update.
func Patch(build func() (client.Object, client.Patch, error), opts ...client.PatchOption) Step {
	return Step{
		verb:  "patch",
		build: build,
		send: func(ctx context.Context, c Client, obj client.Object, patch client.Patch) error {
			return c.Patch(ctx, obj, patch, opts...)
		},
	}
}

// Call is a step of any kind. It should make one API call, or calls that may be
// repeated, for it is repeated whole. Its error is judged by Classify: mark those
// that a retry does not help with Final. An AlreadyExists is one of those, since
// nobody but the caller can tell whose the object is.
func Call(name string, do func(ctx context.Context, c Client) error) Step {
	return Step{
		verb: "call",
		name: name,
		send: func(ctx context.Context, c Client, _ client.Object, _ client.Patch) error { return do(ctx, c) },
	}
}

// PointOfNoReturn says that the work runs once this step is done: the Job exists.
// What comes after is optional, for a failure that is reported while the work runs
// is worse than what is left undone.
func (s Step) PointOfNoReturn() Step { s.noReturnAfter = true; return s }

// Optional says that the spawn goes on without this step, with a Warning.
func (s Step) Optional() Step { s.optional = true; return s }

// Named gives the step a name for errors and logs. Otherwise it is named after what
// it does: "create job default/restore-a".
func (s Step) Named(name string) Step { s.name = name; return s }

// Identity says what makes the work of a Create the same work: anything that JSON
// can hold. Without it, it is the whole object as given, and an object that differs
// in anything is of other work: leave out what may change between two tries of the
// same work, such as versions, times and tokens.
func (s Step) Identity(values ...any) Step { s.identity = values; return s }

// Same decides whether the object that a Create found in its way is of the same
// work, instead of the annotations.
func (s Step) Same(same func(stored client.Object) bool) Step { s.same = same; return s }

func withoutPatch(build func() (client.Object, error)) func() (client.Object, client.Patch, error) {
	return func() (client.Object, client.Patch, error) {
		obj, err := build()
		return obj, nil, err
	}
}

// running is a step in the course of a spawn.
type running struct {
	Step
	client Client
	progress
	obj    client.Object // the caller's
	wanted client.Object // of a Create: obj with its identity on it
	found  client.Object // what a look found
}

// prepare does what comes before the first try.
func (r *running) prepare() error {
	if r.send == nil {
		return errors.New("an empty step")
	}
	if !r.creates {
		return nil
	}
	obj, _, err := r.build()
	if err := r.take(obj, err); err != nil {
		return err
	}
	if r.obj.GetResourceVersion() != "" {
		return errors.New("the object was read or created before; a create needs a new one")
	}
	r.wanted, err = stamp(r.obj, r.identity)
	return err
}

// take checks what the caller has built.
func (r *running) take(obj client.Object, err error) error {
	if err != nil {
		return err
	}
	if v := reflect.ValueOf(obj); !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("there is no object")
	}
	if obj.GetName() == "" {
		return errors.New("the object has no name, so a repeated call could not be told from a first one")
	}
	r.obj = obj
	return nil
}

// try makes one API call.
func (r *running) try(ctx context.Context) answer {
	a := answer{canList: r.canList()}
	if r.next != opSend {
		r.found = nil // of an earlier look, and gone by now
	}
	switch r.next {
	case opGet:
		a.err = r.get(ctx)
	case opList:
		a.err = r.list(ctx)
	default:
		a.err = r.sendOnce(ctx)
		return a
	}
	if a.err == nil && r.creates {
		a.relation, a.uid = relate(r.wanted, r.found, r.same), r.found.GetUID()
	}
	return a
}

// sendOnce sends a copy, so that a try that fails leaves nothing in the caller's
// object: half an answer, or a resourceVersion that makes the next create invalid.
func (r *running) sendOnce(ctx context.Context) error {
	if r.build == nil {
		return r.send(ctx, r.client, nil, nil)
	}
	from, patch := r.wanted, client.Patch(nil)
	if !r.creates {
		obj, p, err := r.build()
		if err := r.take(obj, err); err != nil {
			return Final(err)
		}
		from, patch = obj, p
	}
	sent, ok := from.DeepCopyObject().(client.Object)
	if !ok {
		return Final(fmt.Errorf("a copy of a %T is no object", from))
	}
	if err := r.send(ctx, r.client, sent, patch); err != nil {
		return err
	}
	assign(r.obj, sent)
	return nil
}

// get reads the object that has the name. An Update goes on from it; a Create only
// looks at it.
func (r *running) get(ctx context.Context) error {
	found := empty(r.obj)
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(r.obj), found); err != nil {
		return err
	}
	r.found = found
	if !r.creates {
		assign(r.obj, found)
	}
	return nil
}

// adopt leaves in the caller's object what is known of the one that was there.
// Where it could not be read that is its UID, or nothing, and the mark that it
// carries: an Update of the caller's object would take it away.
func (r *running) adopt() {
	if r.found != nil {
		assign(r.obj, r.found)
		return
	}
	r.obj.SetAnnotations(r.wanted.GetAnnotations())
	if r.toldUID != "" {
		r.obj.SetUID(r.toldUID)
	}
}

func (r *running) decide(a answer) verdict {
	var v verdict
	if r.creates {
		r.progress, v = r.afterCreate(a, r.taken)
	} else {
		r.progress, v = r.afterSend(a, r.build != nil, r.taken)
	}
	return v
}

// title names the step where its caller has not.
func (r *running) title() string {
	switch {
	case r.name != "":
		return r.name
	case r.obj == nil:
		return r.verb
	}
	return fmt.Sprintf("%s %s %s", r.verb, strings.ToLower(r.kind()), strings.TrimPrefix(r.obj.GetNamespace()+"/"+r.obj.GetName(), "/"))
}

func (r *running) kind() string {
	if kind := r.obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	return reflect.TypeOf(r.obj).Elem().Name()
}

func (r *running) taken(uid types.UID, reason, said error) error {
	e := &WorkError{UID: uid, Err: reason, Answer: said}
	if r.obj != nil {
		e.Kind, e.Namespace, e.Name = r.kind(), r.obj.GetNamespace(), r.obj.GetName()
	}
	return e
}

// empty makes an object of the same kind with nothing in it: a client decodes into
// what it is given, and what the answer lacks would stay.
func empty(obj client.Object) client.Object {
	fresh, ok := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(client.Object)
	if !ok {
		return obj // cannot be: it has the type of an object
	}
	fresh.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
	return fresh
}

// assign sets an object to another of its type. The kind stays where only one says it.
func assign(to, from client.Object) {
	kind := to.GetObjectKind().GroupVersionKind()
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
	if to.GetObjectKind().GroupVersionKind() == (schema.GroupVersionKind{}) {
		to.GetObjectKind().SetGroupVersionKind(kind)
	}
}
