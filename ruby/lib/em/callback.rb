# frozen_string_literal: true

module EventMachine
  # Makes something that responds to `call` of the ways in which a callback can be passed: a block, a callable object, or an
  # object and the name of a method.
  def self.Callback(object = nil, method = nil, &block)
    if object && method
      raise ArgumentError, 'a block cannot be combined with an object and a method' if block

      object.method(method)
    elsif object.nil?
      block || raise(ArgumentError, 'a callback must be given')
    elsif object.respond_to?(:call)
      object
    else
      raise ArgumentError, "#{object.class} does not respond to call"
    end
  end
end
