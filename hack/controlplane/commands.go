package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
)

// obey does what one line on stdin says; see upUsage.
func (p *plane) obey(ctx context.Context, line string) error {
	words := strings.Fields(line)
	if len(words) < 2 {
		return fmt.Errorf("command %q is not of the form VERB NAME", line)
	}
	verb, name, flags := words[0], words[1], words[2:]
	c, err := p.component(name)
	if err != nil {
		return err
	}
	if len(flags) > 0 && verb != "start" && verb != "restart" {
		return fmt.Errorf("%s takes no flags", verb)
	}
	switch verb {
	case "start":
		return c.start(ctx, flags)
	case "restart":
		if _, err := mergeFlags(c.flags, flags); err != nil {
			return err // before anything is stopped
		}
		if err := c.stop(); err != nil {
			return err
		}
		return c.start(ctx, flags)
	}
	if !c.isRunning() {
		return fmt.Errorf("%s is not running", name)
	}
	switch verb {
	case "stop":
		return c.stop()
	case "kill":
		return c.kill()
	case "pause":
		return c.signal(syscall.SIGSTOP)
	case "resume":
		return c.signal(syscall.SIGCONT)
	}
	return fmt.Errorf("no command %q; there are start, stop, restart, pause, resume, kill", verb)
}

func (p *plane) component(name string) (*component, error) {
	names := make([]string, len(p.components))
	for i, c := range p.components {
		if c.name == name {
			return c, nil
		}
		names[i] = c.name
	}
	return nil, fmt.Errorf("no component %q; there are %s", name, strings.Join(names, ", "))
}
