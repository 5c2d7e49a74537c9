package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// errLocked is returned by tryLock when somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// lockFile creates name when needed and waits until it has the lock on it.
// Closing the file releases the lock, and so does the end of the process. It
// calls waiting once when it has to wait.
func lockFile(ctx context.Context, name string, waiting func()) (*os.File, error) {
	for first := true; ; first = false {
		f, err := tryLock(name)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	return f, nil
}
