# frozen_string_literal: true

module EventMachine
  # Lends resources to work, one piece of work per resource at a time. Work returns a deferrable; when that is settled, the
  # resource is free again.
  class Pool
    def initialize
      @resources = EventMachine::Queue.new
      @removed = []
      @contents = []
      @on_error = nil
    end

    def add(resource)
      @contents << resource
      requeue(resource)
    end

    # Removes a resource, when it is free.
    def remove(resource)
      @contents.delete(resource)
      @removed << resource
    end

    # The resources, for inspection.
    def contents
      @contents.dup
    end

    # Calls back with a resource whose work has failed. The callback then decides whether it is used again.
    def on_error(*args, &block)
      @on_error = EventMachine.Callback(*args, &block)
    end

    # Calls the block with a resource as soon as one is free.
    def perform(*args, &block)
      work = EventMachine.Callback(*args, &block)
      @resources.pop do |resource|
        if removed?(resource)
          @removed.delete(resource)
          reschedule(work)
        else
          process(work, resource)
        end
      end
    end
    alias reschedule perform

    # Estimate of the number of pieces of work that wait.
    def num_waiting
      @resources.num_waiting
    end

    def removed?(resource)
      @removed.include?(resource)
    end

    def requeue(resource)
      @resources.push(resource)
    end

    private

    def process(work, resource)
      deferrable = work.call(resource)
      raise ArgumentError, "work must return a deferrable, not #{deferrable.class}" unless deferrable.is_a?(EventMachine::Deferrable)

      deferrable.callback { completion(deferrable, resource) }
      deferrable.errback { failure(deferrable, resource) }
    rescue StandardError
      failure(nil, resource)
      raise
    end

    def completion(_deferrable, resource)
      requeue(resource)
    end

    def failure(_deferrable, resource)
      if @on_error
        @contents.delete(resource)
        @on_error.call(resource)
        # Nobody asks for it again, so it need not be remembered.
        @removed.delete(resource)
      else
        requeue(resource)
      end
    end
  end
end
