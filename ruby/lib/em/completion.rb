# frozen_string_literal: true

module EventMachine
  # A result with any number of states. Callbacks run on the reactor's thread.
  class Completion
    include EventMachine::Deferrable

    attr_reader :state, :value

    def initialize
      @state = :unknown
      @callbacks = Hash.new { |hash, state| hash[state] = [] }
      @value = []
      @timeout_timer = nil
    end

    def set_deferred_status(state, *args)
      change_state(state, *args)
    end

    def succeed(*args)
      change_state(:succeeded, *args)
    end
    alias set_deferred_success succeed

    def fail(*args)
      change_state(:failed, *args)
    end
    alias set_deferred_failure fail

    def callback(*args, &block)
      stateback(:succeeded, *args, &block)
    end

    def errback(*args, &block)
      stateback(:failed, *args, &block)
    end

    # Calls back when the state is reached.
    def stateback(state, *args, &block)
      handler = EventMachine.Callback(*args, &block)
      if completed?
        execute_callback(handler) if @state == state
      else
        @callbacks[state].push(handler)
      end
      handler
    end

    # Calls back when any completed state is reached.
    def completion(*args, &block)
      handler = EventMachine.Callback(*args, &block)
      completion_states.each { |state| stateback(state, handler) }
      handler
    end

    # A program may leave a completed state. Callbacks of that state are not called again.
    def change_state(state, *args)
      @value = args
      @state = state
      EventMachine.schedule { execute_callbacks(state) }
    end

    def completed?
      completion_states.include?(@state)
    end

    # The states that are final. Subclasses may have others.
    def completion_states
      %i[succeeded failed]
    end

    # Fails after a number of seconds, unless it has changed its state by then.
    def timeout(time, *args)
      cancel_timeout
      @timeout_timer = EventMachine::Timer.new(time) { fail(*args) unless completed? }
    end

    def cancel_timeout
      return unless @timeout_timer

      @timeout_timer.cancel
      @timeout_timer = nil
    end

    def cancel_callback(*args, &block)
      cancel_stateback(:succeeded, *args, &block)
    end

    def cancel_errback(*args, &block)
      cancel_stateback(:failed, *args, &block)
    end

    def cancel_stateback(state, *args, &block)
      @callbacks[state].delete(EventMachine.Callback(*args, &block))
    end

    private

    def execute_callbacks(state)
      execute_state_callbacks(state)
      return unless completion_states.include?(state)

      @callbacks.clear
      cancel_timeout
    end

    def execute_state_callbacks(state)
      while (handler = @callbacks[state].shift)
        execute_callback(handler)
      end
    end

    def execute_callback(handler)
      EventMachine.schedule { handler.call(*@value) }
    end
  end
end
